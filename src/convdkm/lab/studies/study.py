"""A study: tasks that are planned, estimated and done by a launcher, from wherever they stopped.

A sweep and a comparison of methods are studies. They differ in their tasks, and in the columns of
their tables.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Generic

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.folder import P, R, Status, StudyFolder
from convdkm.lab.studies.launchers.base import Launcher, Outcome, Stop, Task
from convdkm.training.view import format_duration

Say = Callable[[str], None]


@dataclass(frozen=True)
class Tell:
    """Where messages and warnings go."""

    say: Say
    warn: Say


class Progress(Generic[P]):
    """How far the tasks of a study have come.

    Attributes:
        finished: tasks that were finished before.
        left: tasks that have not ended yet, by place.
        done, failed, total: counts of tasks that are finished, failed just now, and are planned.
        seconds: estimated time of the tasks left, by place, where it is known.
        refused: tasks left that cannot be done, by place, with why.
    """

    def __init__(self, finished: Iterable[P], left: Iterable[P]) -> None:
        self.finished = tuple(finished)
        self.left = {each.place: each for each in left}
        self.done, self.failed = len(self.finished), 0
        self.total = self.done + len(self.left)
        self.seconds: dict[str, float] = {}
        self.refused: dict[str, str] = {}

    def remaining(self, at_once: int | None) -> float | None:
        """Seconds until the last task is done; None if that is not known."""
        seconds = [self.seconds[place] for place in self.left if place in self.seconds]
        if len(seconds) < len(self.left) or at_once is None:
            return None
        return max(sum(seconds) / at_once, max(seconds, default=0.0))


@dataclass
class Study(ABC, Generic[P, R]):
    """Tasks to be done in a folder.

    Attributes:
        noun: what a task is called.
        stopping: the message to a user who asks to stop.
        after_failures: what becomes of tasks that failed.
        tells_begin: whether to say that a task begins, where they are done one by one.
        record: the plan, to be added to the folder.
        planned: the tasks of the record, in their order.
    """

    noun: ClassVar[str]
    stopping: ClassVar[str]
    after_failures: ClassVar[str]
    tells_begin: ClassVar[bool] = False
    folder: StudyFolder[P, R]
    record: R
    planned: list[P] = field(init=False)

    def __post_init__(self) -> None:
        self.planned = self.record.planned()

    @abstractmethod
    def announcement(self) -> Iterator[str]:
        """The plan in words."""

    @abstractmethod
    def foresee(
        self, progress: Progress[P], launcher: Launcher, stop: Stop, *, rehearsal: bool, tell: Tell
    ) -> None:
        """Note in ``progress`` what is known before any work, and tell it.

        More of it is told in a rehearsal, where nothing else follows.
        """

    @abstractmethod
    def task(self, planned: P) -> Task:
        """The work of a task, which is about to begin."""

    @abstractmethod
    def ended(self, planned: P, outcome: Outcome) -> Status:
        """Keep the outcome of a task in the folder; its state."""

    @abstractmethod
    def figures(self, status: Any) -> str:
        """The result of a finished task, in words."""

    def close(self) -> None:
        """Clean up when nothing is under way any more."""


def conduct(
    study: Study[P, Any],
    launcher: Launcher,
    *,
    tell: Tell,
    stop: Stop = lambda: False,
    rehearsal: bool = False,
) -> Progress[P] | None:
    """Plan, estimate and do what is not done yet; a task that fails does not stop the rest.

    Args:
        study: the tasks.
        launcher: runs them.
        tell: takes messages and warnings.
        stop: asked now and then whether to stop; tasks under way are then told to.
        rehearsal: only say what would be done, and return nothing.
    """
    folder = study.folder
    with nullcontext() if rehearsal else folder.locked():
        if not rehearsal:
            folder.check(study.record.scale)
        found = [(each, folder.status(each)) for each in study.planned]
        for each, status in found:
            if status.state == "other":
                raise InvalidInputError(
                    f"{folder.path / each.place} holds a run with other settings"
                    f" ({status.error}); choose another --output, or remove that run"
                )
        progress = Progress(
            [each for each, status in found if status.state == "finished"],
            [each for each, status in found if status.state != "finished"],
        )
        for line in study.announcement():
            tell.say(line)
        count = sum(status.state == "begun" for _, status in found)
        if progress.finished or count:
            begun = f", {count} begun" if count else ""
            tell.say(f"{progress.done} finished before{begun}")
        study.foresee(progress, launcher, stop, rehearsal=rehearsal, tell=tell)
        if rehearsal:
            return None
        folder.add(study.record)
        with suppress(KeyboardInterrupt), closing(study):  # what is kept is there all the same
            if not stop():
                _perform(study, progress, launcher, tell, stop)
    return progress


def _perform(
    study: Study[P, Any], progress: Progress[P], launcher: Launcher, tell: Tell, stop: Stop
) -> None:
    """Do the tasks that are left, and tell how each ended; those that were stopped stay left."""
    by_name = {each.title: each for each in progress.left.values()}
    refused = {
        name: progress.refused[each.place]
        for name, each in by_name.items()
        if each.place in progress.refused
    }
    expected, start = sum(progress.seconds.values()), time.monotonic()
    one_by_one = study.tells_begin and launcher.at_once == 1

    def tasks() -> Iterator[Task]:
        for name, each in by_name.items():
            if name not in refused:
                if one_by_one:
                    ordinal = progress.done + progress.failed + 1
                    tell.say(f"[{ordinal}/{progress.total}] {name} …")
                yield study.task(each)

    def to_go() -> float | None:
        """The estimated seconds, corrected by how the time so far compares with the estimate."""
        left = progress.remaining(launcher.at_once)
        gone = expected - sum(progress.seconds.get(place, 0.0) for place in progress.left)
        if left is None or launcher.at_once is None or gone <= 0:
            return left
        return left * (time.monotonic() - start) * launcher.at_once / gone

    never = (Outcome(name, "refused", error=why) for name, why in refused.items())
    for outcome in chain(never, launcher.run(tasks(), stop)):
        if outcome.status == "stopped":
            continue
        planned = by_name[outcome.name]
        status = study.ended(planned, outcome)
        del progress.left[planned.place]
        if status.state == "failed":
            progress.failed += 1
            if outcome.status != "refused":
                tell.warn(f"failed: {planned.title}: {status.error}")
            continue
        progress.done += 1
        words = study.figures(status)
        if one_by_one:
            tell.say(f"    {words}")
            continue
        lost = f", begun {outcome.attempts} times" if outcome.attempts > 1 else ""
        left = to_go()
        more = f"; about {format_duration(left)} to go" if left else ""
        tell.say(f"[{progress.done}/{progress.total}] {planned.title}: {words}{lost}{more}")

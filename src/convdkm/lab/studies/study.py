"""A study: tasks that are planned, foreseen and made by a launcher, from wherever it has come.

A sweep and a comparison of methods are studies. They differ in what a task is, and in the columns
of their tables.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.folder import Planned, Record, Status, StudyFolder
from convdkm.lab.studies.launchers.base import Launcher, Outcome, Stop, Task
from convdkm.training.view import format_duration

P = TypeVar("P", bound=Planned)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Progress(Generic[P]):
    """The tasks of a study by how far they have come."""

    finished: tuple[P, ...]
    remaining: tuple[P, ...]
    begun: int

    @classmethod
    def of(cls, folder: StudyFolder[P, Any], planned: Sequence[P]) -> Progress[P]:
        """Look at every task; an error if one was made with other settings."""
        states = {each.place: folder.status(each) for each in planned}
        for each in planned:
            if states[each.place].state == "other":
                raise InvalidInputError(
                    f"{folder.path / each.place} holds a run with other settings"
                    f" ({states[each.place].error}); choose another --output, or remove that run"
                )
        done = [each for each in planned if states[each.place].state == "finished"]
        rest = [each for each in planned if states[each.place].state != "finished"]
        begun = sum(each.state == "begun" for each in states.values())
        return cls(tuple(done), tuple(rest), begun)


@dataclass(frozen=True)
class Foreseen:
    """What is known before any work, by the places of tasks.

    Attributes:
        seconds: that tasks take.
        refused: tasks that cannot be done, with why.
        problem: why times are not known.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def remaining(self, planned: Iterable[Planned], at_once: int | None) -> float | None:
        """Seconds until the last of the tasks is done; None if that is not known."""
        each = [self.seconds.get(task.place) for task in planned]
        known = [value for value in each if value is not None]
        if len(known) < len(each) or at_once is None:
            return None
        return max(sum(known) / at_once, max(known, default=0.0))

    @property
    def total(self) -> float:
        """Of all tasks one after another."""
        return sum(self.seconds.values())


class Study(ABC, Generic[P]):
    """Tasks to be done in a folder.

    Attributes:
        noun: what a task is called.
        stopping: what is said to a user who asks to stop.
        after_failures: what becomes of tasks that failed.
        tells_begin: whether to say that a task begins, where they are done one by one.
        folder: of the study.
        planned: all tasks that are asked for, in their order.
    """

    noun: ClassVar[str]
    stopping: ClassVar[str]
    after_failures: ClassVar[str]
    tells_begin: ClassVar[bool] = False
    folder: StudyFolder[P, Any]
    planned: Sequence[P]

    @abstractmethod
    def record(self) -> Record:
        """What is asked for, to be added to the folder."""

    @abstractmethod
    def announcement(self) -> Iterator[str]:
        """The plan in words."""

    @abstractmethod
    def foresee(
        self, progress: Progress[P], launcher: Launcher, stop: Stop, *, rehearsal: bool, tell: Tell
    ) -> Foreseen:
        """What is known before any work, which is told; more of it where nothing else follows."""

    @abstractmethod
    def task(self, planned: P) -> Task:
        """The work of a task, which is about to begin."""

    @abstractmethod
    def ended(self, planned: P, outcome: Outcome) -> Status:
        """How a task ended, once that is kept in the folder."""

    @abstractmethod
    def figures(self, status: Any) -> str:
        """What came out of a finished task, in words."""

    def close(self) -> None:
        """Nothing is under way any more."""


@dataclass(frozen=True)
class Tell:
    """Where words go: what is said, and warnings."""

    say: Say
    warn: Say


class Report(Generic[P]):
    """Tells how every task ended, and how long the rest will take."""

    def __init__(
        self,
        study: Study[P],
        progress: Progress[P],
        foreseen: Foreseen,
        at_once: int | None,
        tell: Tell,
    ) -> None:
        self.left = {each.place: each for each in progress.remaining}
        self.done, self.failed, self.total = len(progress.finished), 0, len(study.planned)
        self._study, self._foreseen, self._at_once, self._tell = study, foreseen, at_once, tell
        self._start = time.monotonic()
        self._one_by_one = study.tells_begin and at_once == 1

    def begun(self, planned: P) -> None:
        """A task is about to begin."""
        if self._one_by_one:
            number = self.done + self.failed + 1
            self._tell.say(f"[{number}/{self.total}] {planned.title} …")

    def add(self, planned: P, outcome: Outcome, status: Status) -> None:
        """A task has ended."""
        del self.left[planned.place]
        if status.state == "failed":
            self.failed += 1
            if outcome.status != "refused":
                self._tell.warn(f"failed: {planned.title}: {status.error}")
            return
        self.done += 1
        words = self._study.figures(status)
        if self._one_by_one:
            self._tell.say(f"    {words}")
            return
        lost = f", begun {outcome.attempts} times" if outcome.attempts > 1 else ""
        left = self._remaining()
        more = f"; about {format_duration(left)} to go" if left else ""
        self._tell.say(f"[{self.done}/{self.total}] {planned.title}: {words}{lost}{more}")

    def _remaining(self) -> float | None:
        """Seconds to go, as foreseen, corrected by how the time so far compares with that."""
        left = self._foreseen.remaining(self.left.values(), self._at_once)
        if left is None or not self._foreseen.total or self._at_once is None:
            return left
        gone = self._foreseen.total - sum(self._foreseen.seconds[place] for place in self.left)
        spent = (time.monotonic() - self._start) * self._at_once
        return left * spent / gone if gone > 0 else left


def conduct(
    study: Study[P],
    launcher: Launcher,
    *,
    tell: Tell,
    stop: Stop = lambda: False,
    rehearsal: bool = False,
) -> Report[P] | None:
    """Plan, foresee and do what is not done yet; a task that fails does not stop the rest.

    Args:
        study: what to do.
        launcher: to do it by.
        tell: takes what is to be said.
        stop: asked now and then whether to stop; tasks under way are then told to.
        rehearsal: only say what would be done, and return nothing.
    """
    with nullcontext() if rehearsal else study.folder.locked():
        record = study.record()
        if not rehearsal:
            study.folder.check(record.scale)
        progress = Progress.of(study.folder, study.planned)
        for line in study.announcement():
            tell.say(line)
        if progress.finished or progress.begun:
            begun = f", {progress.begun} begun" if progress.begun else ""
            tell.say(f"{len(progress.finished)} finished before{begun}")
        foreseen = study.foresee(progress, launcher, stop, rehearsal=rehearsal, tell=tell)
        if rehearsal:
            return None
        study.folder.add(record)
        report = Report(study, progress, foreseen, launcher.at_once, tell)
        with suppress(KeyboardInterrupt):  # asked twice: what is kept is there all the same
            if not stop():
                for ended in perform(
                    study,
                    progress.remaining,
                    launcher,
                    stop=stop,
                    refused=foreseen.refused,
                    begun=report.begun,
                ):
                    report.add(*ended)
    return report


def perform(
    study: Study[P],
    remaining: Sequence[P],
    launcher: Launcher,
    *,
    stop: Stop = lambda: False,
    refused: Mapping[str, str] | None = None,
    begun: Callable[[P], None] = lambda _: None,
) -> Iterator[tuple[P, Outcome, Status]]:
    """Do tasks, and yield each as it ends; those that were stopped are left out.

    Args:
        study: whose tasks they are.
        remaining: those that are still to do, in their order.
        launcher: to do them by.
        stop: whether to stop.
        refused: places of tasks that are not to be tried, with why.
        begun: told of every task that is handed to the launcher.
    """
    refused = refused or {}
    by_name = {each.title: each for each in remaining}

    def tasks() -> Iterator[Task]:
        for each in remaining:
            if each.place not in refused:
                begun(each)
                yield study.task(each)

    never = (
        Outcome(each.title, "refused", error=refused[each.place])
        for each in remaining
        if each.place in refused
    )
    with closing(study):
        for outcomes in (never, launcher.run(tasks(), stop)):
            for outcome in outcomes:
                if outcome.status != "stopped":
                    planned = by_name[outcome.name]
                    yield planned, outcome, study.ended(planned, outcome)

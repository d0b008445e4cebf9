"""A sweep: the runs that a table needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from convdkm.lab.studies.folder import Status, counted
from convdkm.lab.studies.launchers.base import Launcher, Outcome, Stop
from convdkm.lab.studies.study import Foreseen, Progress, Study, Tell
from convdkm.lab.studies.sweeps.estimating import estimate
from convdkm.lab.studies.sweeps.folder import Record, SweepFolder
from convdkm.lab.studies.sweeps.planning import PlannedRun, Scale, Selection, plan, scale_notes
from convdkm.lab.studies.sweeps.specification import categories_of
from convdkm.lab.studies.sweeps.tasks import RunTask
from convdkm.training.view import format_duration


@dataclass
class Sweep(Study[PlannedRun]):
    """The runs of one table.

    Attributes:
        folder: of the sweep.
        table: its name.
        chosen: what of the table is asked for.
        scale: of all runs.
        where: options of the place, such as the device.
        timed: measure beforehand how long runs take.
    """

    noun = "run"
    stopping = "Stopping; runs under way save their state. Ctrl-C again stops at once."
    after_failures = "their errors are kept, and the same command tries them again"

    folder: SweepFolder
    table: str
    chosen: Selection
    scale: Scale
    where: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = True
    planned: Sequence[PlannedRun] = field(init=False)

    def __post_init__(self) -> None:
        self.planned = plan([self.chosen], self.scale)

    def record(self) -> Record:
        return Record(scale=self.scale, tables={self.table: self.chosen})

    def announcement(self) -> Iterator[str]:
        rows, sets = sum(map(len, self.chosen.rows.values())), len(self.chosen.datasets)
        seeds, count = self.chosen.seeds, len(self.planned)
        parts = [counted(rows, "setting"), counted(sets, "data set"), counted(seeds, "seed")]
        shared = rows * sets * seeds - count
        note = f" ({shared} shared between categories)" if shared else ""
        yield f"Table {self.table}: {' × '.join(parts)}, {counted(count, 'run')}{note}"
        notes = scale_notes(categories_of(self.table), self.scale, self.chosen)
        yield f"Not at the scale of the paper: {'; '.join(notes)}" if notes else "As in the paper"

    def foresee(
        self,
        progress: Progress[PlannedRun],
        launcher: Launcher,
        stop: Stop,
        *,
        rehearsal: bool,
        tell: Tell,
    ) -> Foreseen:
        if not self.timed:
            return Foreseen()
        if not progress.remaining:
            if rehearsal:
                tell.say("Nothing is left to do")
            return Foreseen()
        found = estimate(progress, self.folder, launcher, where=self.where, stop=stop)
        if found.problem:
            tell.warn(f"a trial failed: {found.problem}")
        left = found.remaining(progress.remaining, launcher.at_once)
        if left is not None:
            tell.say(f"About {format_duration(left)}, with {launcher.at_once} at a time")
        elif len(found.seconds) == len(progress.remaining):
            tell.say(f"About {format_duration(found.total)} of runs, one after another")
        return found

    def task(self, planned: PlannedRun) -> RunTask:
        """A run from wherever it has come to its end."""
        self.folder.clear_failure(planned)
        return RunTask(
            planned.title,
            str(self.folder.of(planned).absolute()),
            planned.config.updated(self.where).model_dump(mode="json"),
            str(self.folder.file(planned, "log").absolute()),
        )

    def ended(self, planned: PlannedRun, outcome: Outcome) -> Status:
        """A run keeps its figures itself; its error is kept beside it."""
        if outcome.status == "done":
            return Status(state="finished", metrics=outcome.value)
        self.folder.note_failure(planned, outcome.error, outcome.attempts)
        return Status(state="failed", error=outcome.error)

    def figures(self, status: Status) -> str:
        return f"{status.metrics['test_accuracy']:.2%}"

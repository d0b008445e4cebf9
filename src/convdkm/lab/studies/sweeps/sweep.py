"""A sweep: the runs that a table needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convdkm.config import RunConfig
from convdkm.lab.studies.folder import Status, counted
from convdkm.lab.studies.launchers.base import Launcher, Outcome, Stop, asked_to_stop
from convdkm.lab.studies.study import Progress, Study, Tell
from convdkm.lab.studies.sweeps.folder import Record, SweepFolder, read_metrics
from convdkm.lab.studies.sweeps.planning import PlannedRun, scale_notes
from convdkm.lab.studies.sweeps.specification import categories_of
from convdkm.lab.studies.sweeps.timing import estimate, keep_memory
from convdkm.training.view import format_duration


@dataclass(frozen=True)
class RunTask:
    """A run in its folder, made or gone on with."""

    name: str
    folder: str
    config: RunConfig
    log: str | None = None

    def __call__(self) -> dict[str, float] | None:
        """The final figures; None if it was asked to stop before."""
        from convdkm.training.checkpoint import CheckpointStore
        from convdkm.training.fit import fit, resume
        from convdkm.training.folder import CHECKPOINTS

        folder = Path(self.folder)
        done = read_metrics(folder)
        if done is not None:
            return done
        config = self.config
        keep_memory(config.training.device)
        place: dict[str, Any] = {"data_dir": config.data.data_dir, "device": config.training.device}
        if CheckpointStore(folder / CHECKPOINTS).names():
            run = resume(folder, stop=asked_to_stop, **place)
        else:
            run = fit(config, config.data.dataset, folder=folder, stop=asked_to_stop)
        return run.metrics or None


@dataclass
class Sweep(Study[PlannedRun, Record]):
    """The runs of one table.

    Attributes:
        where: options of the place, such as the device.
        timed: measure beforehand how long runs take.
    """

    noun = "run"
    stopping = "Stopping; runs under way save their state. Ctrl-C again stops at once."
    after_failures = "their errors are kept, and the same command tries them again"

    folder: SweepFolder
    where: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = True

    def announcement(self) -> Iterator[str]:
        ((table, chosen),) = self.record.tables.items()
        rows, sets = sum(map(len, chosen.rows.values())), len(chosen.datasets)
        seeds, count = chosen.seeds, len(self.planned)
        parts = [counted(rows, "setting"), counted(sets, "data set"), counted(seeds, "seed")]
        shared = rows * sets * seeds - count
        note = f" ({shared} shared between categories)" if shared else ""
        yield f"Table {table}: {' × '.join(parts)}, {counted(count, 'run')}{note}"
        notes = scale_notes(categories_of(table), self.record.scale, chosen)
        yield f"Not at the scale of the paper: {'; '.join(notes)}" if notes else "As in the paper"

    def foresee(
        self,
        progress: Progress[PlannedRun],
        launcher: Launcher,
        stop: Stop,
        *,
        rehearsal: bool,
        tell: Tell,
    ) -> None:
        if not self.timed:
            return
        if not progress.left:
            if rehearsal:
                tell.say("Nothing is left to do")
            return
        estimate(progress, self.folder, launcher, where=self.where, stop=stop, warn=tell.warn)
        left = progress.remaining(launcher.at_once)
        if left is not None:
            tell.say(f"About {format_duration(left)}, with {launcher.at_once} at a time")
        elif len(progress.seconds) == len(progress.left):
            total = format_duration(sum(progress.seconds.values()))
            tell.say(f"About {total} of runs, one after another")

    def task(self, planned: PlannedRun) -> RunTask:
        """A run from wherever it has come to its end."""
        self.folder.clear_failure(planned)
        return RunTask(
            planned.title,
            str(self.folder.of(planned).absolute()),
            planned.config.updated(self.where),
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

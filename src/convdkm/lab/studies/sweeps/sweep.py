"""A sweep: the runs that a table needs, from the options of a user to their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convdkm.config import RunConfig
from convdkm.data.registry import MissingDataError, checked_dataset, is_known, locate
from convdkm.errors import InvalidInputError
from convdkm.lab.studies.folder import Status, counted
from convdkm.lab.studies.launchers.base import Launcher, Outcome, Stop, asked_to_stop
from convdkm.lab.studies.study import Progress, Study, Tell
from convdkm.lab.studies.sweeps.planning import (
    IMMATERIAL,
    PlannedRun,
    Record,
    Scale,
    Selection,
    SweepFolder,
    read_metrics,
    scale_notes,
)
from convdkm.lab.studies.sweeps.specification import categories_of, chosen_rows
from convdkm.lab.studies.sweeps.timing import estimate, keep_memory
from convdkm.training.view import format_duration

DEDICATED_FLAGS = {
    name: f"--{name.replace('_', '-')}"
    for name in ("dataset", "epochs", "train_size", "inducing", "data_dir", "device")
} | {"seed": "--seeds"}
"""Options of a run that ``--set`` leaves to options of their own."""


@dataclass(frozen=True)
class RunTask:
    """A run in its folder, begun or resumed."""

    name: str
    folder: str
    config: RunConfig
    log: str | None = None

    def __call__(self) -> dict[str, float] | None:
        """The final figures; None if it was asked to stop before."""
        from convdkm.training.checkpoint import CheckpointStore
        from convdkm.training.fit import fit, resume
        from convdkm.training.folder import CHECKPOINTS

        folder, config = Path(self.folder), self.config
        done = read_metrics(folder)
        if done is not None:
            return done
        data_dir, device = config.data.data_dir, config.training.device
        keep_memory(device)
        if CheckpointStore(folder / CHECKPOINTS).names():
            run = resume(folder, stop=asked_to_stop, data_dir=data_dir, device=device)
        else:
            run = fit(config, config.data.dataset, folder=folder, stop=asked_to_stop)
        return run.metrics or None


@dataclass
class Sweep(Study[PlannedRun, Record]):
    """The runs of one table.

    Attributes:
        where: options of the place, such as the device.
        timed: whether to measure beforehand how long runs take.
    """

    noun = "run"
    stopping = "Stopping; runs under way save their state. Ctrl-C again stops at once."
    after_failures = "their errors are kept, and the same command tries them again"

    folder: SweepFolder
    where: Mapping[str, Any]
    timed: bool

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
        """A run, from its last checkpoint if it has one."""
        self.folder.clear_failure(planned)
        return RunTask(
            planned.title,
            str(self.folder.of(planned).absolute()),
            planned.config.updated(self.where),
            str(self.folder.file(planned, "log").absolute()),
        )

    def ended(self, planned: PlannedRun, outcome: Outcome) -> Status:
        """Keep the error of a run that failed; a run keeps its figures itself."""
        if outcome.status == "done":
            return Status(state="finished", metrics=outcome.value)
        self.folder.note_failure(planned, outcome.error, outcome.attempts)
        return Status(state="failed", error=outcome.error)

    def figures(self, status: Status) -> str:
        return f"{status.metrics['test_accuracy']:.2%}"


def asked_for(
    table: str,
    folder: SweepFolder,
    *,
    datasets: Sequence[str] | None,
    rows: Sequence[str] | None,
    seeds: int | None,
    preset: str | None,
    others: Mapping[str, str],
    where: Mapping[str, str | None],
    timed: bool,
    **scale: str | None,
) -> Sweep:
    """The sweep that the options of ``convdkm sweep`` ask for; nothing is written."""
    tables = categories_of(table)
    picked = chosen_rows(table, rows)
    names = [checked_dataset(name) for name in datasets or tables[0].datasets]
    seeds = tables[0].base.seeds if seeds is None else seeds
    if seeds < 1:
        raise InvalidInputError(f"--seeds must be at least 1, got {seeds}")
    selection = Selection(
        datasets=tuple(dict.fromkeys(names)),
        rows={name: tuple(row.name for row in group) for name, group in picked.items() if group},
        seeds=seeds,
    )
    size = {name: value for name, value in scale.items() if value is not None}
    checked = RunConfig.of(size, "the options").flat()
    set_by_name = _others(others)
    further = {name: value for name, value in set_by_name.items() if name not in IMMATERIAL}
    changed = Scale(preset=preset, others=further, **{name: checked[name] for name in size})
    place: dict[str, Any] = {
        **{name: value for name, value in set_by_name.items() if name in IMMATERIAL},
        **{name: value for name, value in where.items() if value is not None},
    }
    if "data_dir" in place:
        place["data_dir"] = str(Path(place["data_dir"]).expanduser().resolve())
    RunConfig.of(place, "the options")
    return Sweep(folder, Record(scale=changed, tables={table: selection}), place, timed)


def _others(given: Mapping[str, str]) -> dict[str, str]:
    """Options by ``--set``: checked, and each written in one way, which the option takes."""
    for name, value in given.items():
        if flag := DEDICATED_FLAGS.get(name):
            raise InvalidInputError(
                f"--set {name}={value}: that has an option of its own here, {flag}"
            )
    checked = RunConfig.of(given, "--set").flat()
    values = {name: checked[name] for name in given}
    return {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
    }


def require_data(datasets: Sequence[str], data_dir: str | None) -> None:
    """Raise before anything is begun, if a data set is not on this machine."""
    for name in datasets:
        try:
            if is_known(name):
                locate(name, data_dir)
        except MissingDataError as error:
            others = [each for each in datasets if each != name]
            more = f". Or leave it out: --dataset {','.join(others)}" if others else ""
            raise MissingDataError(f"{error}{more}") from None

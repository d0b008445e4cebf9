"""``convdkm sweep``: the plan, the trial, the runs, and what is said about them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convdkm.cli.interrupt import Interrupt
from convdkm.cli.output import console, say, say_path, warn
from convdkm.cli.settings import checked_dataset, given_options
from convdkm.config import RunConfig
from convdkm.data.registry import MissingDataError, is_known, locate
from convdkm.errors import InvalidInputError
from convdkm.lab.studies.estimating import Estimate, estimate
from convdkm.lab.studies.folder import SweepFolder
from convdkm.lab.studies.launchers import Launcher, Outcome, Resources, check_name, make_launcher
from convdkm.lab.studies.planning import (
    IMMATERIAL,
    PlannedRun,
    Scale,
    Selection,
    counted,
    plan,
    scale_notes,
)
from convdkm.lab.studies.specification import Category, categories_of, chosen_rows
from convdkm.lab.studies.sweeping import Progress, sweep
from convdkm.presets import preset as preset_of
from convdkm.storage.text import in_shell
from convdkm.training.view import format_duration

Say = Callable[[str], None]

OWN_FLAG = {
    name: f"--{name.replace('_', '-')}"
    for name in ("dataset", "epochs", "train_size", "inducing", "data_dir", "device")
} | {"seed": "--seeds"}
"""Options of a run that ``--set`` leaves to options of their own."""
STOPPING = "Stopping; runs under way save their state. Ctrl-C again stops at once."


@dataclass(frozen=True)
class Request:
    """What a user asks for, as given."""

    table: str
    output: Path | None
    datasets: list[str] | None
    rows: list[str] | None
    seeds: int | None
    scale: Mapping[str, str | None]
    preset: str | None
    others: Sequence[str]
    where: Mapping[str, str | None]

    def categories(self) -> tuple[Category, ...]:
        """The categories of the table."""
        return categories_of(self.table)

    def selection(self) -> Selection:
        """What of the table is to be run."""
        tables = self.categories()
        rows = chosen_rows(self.table, self.rows)
        datasets = [checked_dataset(name) for name in self.datasets or tables[0].datasets]
        seeds = tables[0].base.seeds if self.seeds is None else self.seeds
        if seeds < 1:
            raise InvalidInputError(f"--seeds must be at least 1, got {seeds}")
        return Selection(
            datasets=tuple(dict.fromkeys(datasets)),
            rows={name: tuple(row.name for row in group) for name, group in rows.items() if group},
            seeds=seeds,
        )

    def checked_scale(self) -> Scale:
        """What is changed of the paper's runs."""
        if self.preset is not None:
            preset_of(self.preset)
        given = {name: value for name, value in self.scale.items() if value is not None}
        checked = RunConfig.of(given, "the options").flat()
        others = {name: value for name, value in self._others().items() if name not in IMMATERIAL}
        return Scale(preset=self.preset, others=others, **{name: checked[name] for name in given})

    def place(self) -> dict[str, Any]:
        """Where runs are made: options that do not change their figures."""
        given = {name: value for name, value in self._others().items() if name in IMMATERIAL}
        given |= {name: value for name, value in self.where.items() if value is not None}
        if "data_dir" in given:
            given["data_dir"] = str(Path(given["data_dir"]).expanduser().resolve())
        RunConfig.of(given, "the options")
        return given

    def _others(self) -> dict[str, str]:
        """Options given as ``--set NAME=VALUE``: checked, and each written in one way."""
        given = given_options(self.others)
        for name, value in given.items():
            if own := OWN_FLAG.get(name):
                raise InvalidInputError(
                    f"--set {name}={value}: that has an option of its own here, {own}"
                )
        checked = RunConfig.of(given, "--set").flat()
        return {name: written(checked[name]) for name in given}


def run_sweep(
    request: Request,
    *,
    launcher: dict[str, Any],
    resources: dict[str, Any],
    dry_run: bool,
    trial: bool,
    quiet: bool,
) -> None:
    """Plan, measure, run; the last line printed is the folder."""
    chosen, scale, where = request.selection(), request.checked_scale(), request.place()
    runs = plan([chosen], scale)
    check_name(launcher["name"])
    if launcher["name"] == "local":
        _require_data(chosen.datasets, where.get("data_dir"))
    given = Resources(**resources)
    folder = SweepFolder(request.output or Path("sweeps") / request.table)
    screen = console()

    def say(text: str) -> None:
        if not quiet:
            screen.print(text, soft_wrap=True)

    jobs = folder.path / "jobs"
    if dry_run:
        jobs = folder.path.with_name(f"{folder.path.name}-trial")
    device = where.get("device")
    engine = make_launcher(resources=given, folder=jobs, device=device, **launcher)
    with Interrupt(STOPPING) as interrupt:
        if dry_run:
            progress = Progress.of(folder, runs)
            _announce(request, chosen, scale, progress, count=len(runs), say=say)
            if trial:
                _foresee(progress, folder, engine, where=where, stop=interrupt, say=say)
            return
        with folder.locked():
            progress = Progress.of(folder, runs)
            folder.add(request.table, chosen, scale)
            _announce(request, chosen, scale, progress, count=len(runs), say=say)
            expected = Estimate({})
            if trial and progress.remaining:
                expected = _foresee(progress, folder, engine, where=where, stop=interrupt, say=say)
            report = _Report(progress, len(runs), expected, engine, say)
            with suppress(
                KeyboardInterrupt
            ):  # the second Ctrl-C: checkpoints are there all the same
                if not interrupt.asked:
                    for run, outcome in sweep(folder, progress.remaining, engine, where, interrupt):
                        report.add(run, outcome)
    _conclude(report, folder, interrupt)


def written(value: Any) -> str:
    """The value of an option as text that the option takes."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _require_data(datasets: Sequence[str], data_dir: str | None) -> None:
    """Raise before anything is begun, if a data set is not on this machine."""
    for name in datasets:
        try:
            if is_known(name):
                locate(name, data_dir)
        except MissingDataError as error:
            others = [each for each in datasets if each != name]
            more = f". Or leave it out: --dataset {','.join(others)}" if others else ""
            raise MissingDataError(f"{error}{more}") from None


def _announce(
    request: Request,
    chosen: Selection,
    scale: Scale,
    progress: Progress,
    *,
    count: int,
    say: Say,
) -> None:
    """How many runs, at what scale, and how many of them are done."""
    rows = sum(map(len, chosen.rows.values()))
    sets = len(chosen.datasets)
    parts = [
        counted(rows, "setting"),
        counted(sets, "data set"),
        counted(chosen.seeds, "seed"),
    ]
    shared = rows * sets * chosen.seeds - count
    note = f" ({shared} shared between categories)" if shared else ""
    say(f"Table {request.table}: {' × '.join(parts)}, {counted(count, 'run')}{note}")
    tables = request.categories()
    notes = scale_notes(tables, scale, {"seeds": chosen.seeds, "datasets": chosen.datasets})
    say(f"Not at the scale of the paper: {'; '.join(notes)}" if notes else "As in the paper")
    if progress.finished or progress.begun:
        begun = f", {progress.begun} begun" if progress.begun else ""
        say(f"{len(progress.finished)} finished before{begun}")


def _foresee(
    progress: Progress,
    folder: SweepFolder,
    engine: Launcher,
    *,
    where: dict[str, Any],
    stop: Interrupt,
    say: Say,
) -> Estimate:
    """Say how long it will take."""
    if not progress.remaining:
        say("Nothing is left to do")
        return Estimate({})
    expected = estimate(
        progress.remaining, progress.finished, folder, engine, where=where, stop=stop
    )
    if expected.problem:
        warn(f"a trial failed: {expected.problem}")
    left = expected.remaining(progress.remaining, engine.at_once)
    if left is not None:
        say(f"About {format_duration(left)}, with {engine.at_once} at a time")
    elif len(expected.seconds) == len(progress.remaining):
        say(f"About {format_duration(expected.total)} of runs, one after another")
    return expected


class _Report:
    """Says how every run ended, and how long the rest will take."""

    def __init__(
        self, progress: Progress, total: int, expected: Estimate, engine: Launcher, say: Say
    ) -> None:
        self.left = {run.place: run for run in progress.remaining}
        self.done, self.total = len(progress.finished), total
        self.failures: list[tuple[PlannedRun, Outcome]] = []
        self._expected, self._engine, self._say = expected, engine, say
        self._start, self._planned = time.monotonic(), expected.total

    def add(self, run: PlannedRun, outcome: Outcome) -> None:
        if outcome.status == "stopped":
            return
        del self.left[run.place]
        if outcome.status != "done":
            self.failures.append((run, outcome))
            warn(f"failed: {run.title}: {outcome.error}")
            return
        self.done += 1
        accuracy = outcome.value["test_accuracy"]
        lost = f", begun {outcome.attempts} times" if outcome.attempts > 1 else ""
        left = self._remaining()
        more = f"; about {format_duration(left)} to go" if left else ""
        self._say(f"[{self.done}/{self.total}] {run.title}: {accuracy:.2%}{lost}{more}")

    def _remaining(self) -> float | None:
        """Seconds to go, as foreseen, corrected by how the time so far compares with that."""
        left = self._expected.remaining(self.left.values(), self._engine.at_once)
        if left is None or not self._planned or self._engine.at_once is None:
            return left
        gone = self._planned - sum(self._expected.seconds[place] for place in self.left)
        spent = (time.monotonic() - self._start) * self._engine.at_once
        return left * spent / gone if gone > 0 else left


def _conclude(report: _Report, folder: SweepFolder, interrupt: Interrupt) -> None:
    path = in_shell(folder.path)
    if report.left:
        again = " ".join(map(in_shell, ["convdkm", *sys.argv[1:]]))
        say(f"Stopped with {report.done} of {report.total} runs finished. Go on with\n  {again}")
        say_path(folder.path)
        sys.exit(interrupt.exit_code)
    if report.failures:
        count = len(report.failures)
        print(
            f"{report.done} of {report.total} runs finished, {count} failed; their errors are kept,"
            " and the same command tries them again"
        )
    say(f"See the results with\n  convdkm tables {path}")
    say_path(folder.path)
    if report.failures:
        sys.exit(1)

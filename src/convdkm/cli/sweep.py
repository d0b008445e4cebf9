"""``convdkm sweep``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from convdkm.cli.arguments import DataDir, Device, Quiet, argument, listed, option, switch
from convdkm.cli.interrupt import Interrupt
from convdkm.cli.output import console, say, say_path, warn
from convdkm.storage.text import in_shell

if TYPE_CHECKING:
    from convdkm.lab.studies.estimating import Estimate
    from convdkm.lab.studies.folder import SweepFolder
    from convdkm.lab.studies.launchers import Launcher, Outcome
    from convdkm.lab.studies.planning import PlannedRun, Scale, Selection
    from convdkm.lab.studies.request import Request
    from convdkm.lab.studies.sweeping import Progress

Say = Callable[[str], None]

STOPPING = "Stopping; runs under way save their state. Ctrl-C again stops at once."
_scale, _launch = partial(option, group="Scale"), partial(option, group="Launching")


def sweep(
    table: Annotated[
        str,
        argument(
            "TABLE",
            "selection (Table 1: all of nu, normalisation, rescaling, top and likelihood), one of"
            " these five, inducing (Table 2) or comparison (Table 3)",
        ),
    ],
    *,
    output: Annotated[
        Path | None,
        option("FOLDER", "folder of the sweep (default: sweeps/TABLE)", "--output", "-o"),
    ] = None,
    dry_run: Annotated[
        bool, switch("--dry-run", "show the plan and the time it takes, and stop")
    ] = False,
    trial: Annotated[
        bool, switch("--trial/--no-trial", "measure a short trial beforehand (default: on)")
    ] = True,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    device: Device = None,
    dataset: Annotated[
        list[str] | None, _scale("NAME,NAME", "data sets (default: those of the paper's table)")
    ] = None,
    rows: Annotated[
        list[str] | None,
        _scale(
            "ROW,ROW",
            "rows of the table, such as inf,1,0.01 or batch/location or nu:1 (default: all)",
        ),
    ] = None,
    seeds: Annotated[int | None, _scale("N", "seeds of every setting (default: 4)")] = None,
    epochs: Annotated[str | None, _scale("N", "epochs of every run")] = None,
    train_size: Annotated[
        str | None,
        _scale("N", "use only so many training images, balanced over the classes"),
    ] = None,
    inducing: Annotated[
        str | None,
        _scale("N,N,N", "inducing points of every stage, where they are not what varies"),
    ] = None,
    preset: Annotated[
        str | None,
        _scale(
            "NAME",
            "settings beneath the table's: paper, published, or fast or quick, which bring a size"
            " of their own (default: as the table says)",
        ),
    ] = None,
    others: Annotated[
        list[str] | None,
        _scale(
            "NAME=VALUE",
            "any other option of convdkm train, such as evaluate_every=0; may be repeated",
            "--set",
        ),
    ] = None,
    launcher: Annotated[str, _launch("NAME", "local, ray or slurm (local)")] = "local",
    jobs: Annotated[
        int | None,
        _launch("N", "runs at a time (local: as many as cores or devices; slurm: all)"),
    ] = None,
    cpus: Annotated[int | None, _launch("N", "cores of one run")] = None,
    gpus: Annotated[
        float | None,
        _launch("X", "GPUs of one run, or a share of one (local: 1 if there are any; else 0)"),
    ] = None,
    retries: Annotated[
        int, _launch("N", "times to go on with a run whose process was lost (3)")
    ] = 3,
    address: Annotated[
        str | None, _launch("ADDRESS", "ray: of the cluster (RAY_ADDRESS, or one started here)")
    ] = None,
    partition: Annotated[str | None, _launch("NAME", "slurm: partition")] = None,
    hours: Annotated[
        float, _launch("X", "slurm: limit of a job, after which it is queued again (24)")
    ] = 24.0,
) -> None:
    """Make the runs of one of the paper's tables.

    Every setting is trained on every data set with four seeds, unless told to do less. The same
    command continues where it stopped: finished runs are kept, others continue from their
    checkpoints, and failed ones are tried again. A failure does not stop the rest. The last line
    printed is the folder, for convdkm tables.
    """
    from convdkm.cli.inputs import given_options
    from convdkm.lab.studies.estimating import Estimate
    from convdkm.lab.studies.folder import SweepFolder
    from convdkm.lab.studies.launchers import Resources, check_name, make_launcher
    from convdkm.lab.studies.planning import plan
    from convdkm.lab.studies.request import Request, require_data
    from convdkm.lab.studies.sweeping import Progress
    from convdkm.lab.studies.sweeping import sweep as run_all

    request = Request(
        table=table,
        output=output,
        datasets=listed(dataset),
        rows=listed(rows),
        seeds=seeds,
        scale={"epochs": epochs, "train_size": train_size, "inducing": inducing},
        preset=preset,
        others=given_options(others or ()),
        where={"data_dir": data_dir, "device": device},
    )
    chosen, scale, where = request.selection(), request.checked_scale(), request.place()
    runs = plan([chosen], scale)
    check_name(launcher)
    if launcher == "local":
        require_data(chosen.datasets, where.get("data_dir"))
    resources = Resources(cpus=cpus, gpus=gpus, retries=retries)
    folder = SweepFolder(output or Path("sweeps") / table)
    place = folder.path.with_name(f"{folder.path.name}-trial") if dry_run else folder.path / "jobs"
    engine = make_launcher(
        launcher,
        resources=resources,
        folder=place,
        device=where.get("device"),
        jobs=jobs,
        address=address,
        partition=partition,
        hours=hours,
    )
    screen = console()

    def say(text: str) -> None:
        if not quiet:
            screen.print(text, soft_wrap=True)

    with Interrupt(STOPPING) as interrupt:
        if dry_run:
            progress = Progress.of(folder, runs)
            _announce(request, chosen, scale, progress, count=len(runs), say=say)
            if trial:
                _foresee(progress, folder, engine, where=where, stop=interrupt, say=say)
            return
        with folder.locked():
            progress = Progress.of(folder, runs)
            folder.add(table, chosen, scale)
            _announce(request, chosen, scale, progress, count=len(runs), say=say)
            expected = Estimate({})
            if trial and progress.remaining:
                expected = _foresee(progress, folder, engine, where=where, stop=interrupt, say=say)
            report = _Report(progress, len(runs), expected, engine, say)
            with suppress(KeyboardInterrupt):  # twice: checkpoints are there all the same
                if not interrupt.asked:
                    for run, outcome in run_all(
                        folder, progress.remaining, engine, where, interrupt
                    ):
                        report.add(run, outcome)
    _conclude(report, folder, interrupt)


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
    from convdkm.lab.studies.planning import counted, scale_notes

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
    from convdkm.lab.studies.estimating import Estimate, estimate
    from convdkm.training.view import format_duration

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
        from convdkm.training.view import format_duration

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

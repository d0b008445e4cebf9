"""``convdkm compare``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from convdkm.cli.arguments import DataDir, Quiet, TableFormat, argument, listed, option, switch
from convdkm.cli.interrupt import Interrupt
from convdkm.cli.output import console, plain_table, say, say_path, warn
from convdkm.cli.tables import check_format, write_comparison
from convdkm.data.registry import is_known, locate
from convdkm.errors import InvalidInputError
from convdkm.storage.text import in_shell

if TYPE_CHECKING:
    from convdkm.data import Dataset
    from convdkm.lab.studies.comparison.folder import ComparisonFolder, Scale, TrialResult
    from convdkm.lab.studies.comparison.foreseeing import Place
    from convdkm.lab.studies.comparison.planning import Plan, PlannedTrial
    from convdkm.lab.studies.launchers.base import Launcher

Say = Callable[[str], None]

USUAL_SIZE = 1000
PAGE = "report.html"
STOPPING = "Stopping; the trial under way is given up. Ctrl-C again stops at once."
_scale = partial(option, group="Scale, the same for all trials of a folder")


def compare(
    dataset: Annotated[
        str | None,
        argument(
            "DATASET",
            "digits, mnist, fashion-mnist, cifar10, cifar100, a folder with a sub-folder of images"
            " for each class, or an .npz file",
        ),
    ] = None,
    *,
    methods: Annotated[
        list[str] | None,
        option(
            "NAME,NAME",
            "methods, or a group of them: all, quick, machines, networks, kernels or processes"
            " (default: quick)",
        ),
    ] = None,
    train_size: Annotated[
        list[str] | None,
        option(
            "N,N",
            "training images, balanced over the classes; several sizes, or all (default: 1000, or"
            " all if there are fewer)",
        ),
    ] = None,
    seeds: Annotated[int, option("N", "fits of each method at each size (default: 3)")] = 3,
    output: Annotated[
        Path | None,
        option(
            "FOLDER", "folder of the comparison (default: comparisons/DATASET)", "--output", "-o"
        ),
    ] = None,
    format: TableFormat = "markdown",
    list_methods: Annotated[bool, switch("--list", "list the methods and stop")] = False,
    dry_run: Annotated[
        bool,
        switch("--dry-run", "show the plan, what does not fit and how long kernels take, and stop"),
    ] = False,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    threads: Annotated[
        int | None, option("N", "of each trial (OMP_NUM_THREADS, or all cores)")
    ] = None,
    budget: Annotated[
        float,
        _scale(
            "MINUTES",
            "limit of each fit, and of each prediction of the test images by a kernel; inf for"
            " no limit (default: 10)",
        ),
    ] = 10.0,
    test_size: Annotated[
        int | None, _scale("N", "test images, the same for all methods (default: all)")
    ] = None,
    preset: Annotated[
        str,
        _scale(
            "NAME",
            "settings of the machine, the inducing NNGP and the CNN, and of the crops and flips"
            " of all methods (default: quick)",
        ),
    ] = "quick",
    whitening: Annotated[
        str | None,
        _scale(
            "NAME",
            "auto, zca, zca-paper, standardise, scale or none; auto is zca, or standardise where"
            " that does not fit (default: as in the preset)",
        ),
    ] = None,
    image_size: Annotated[int | None, _scale("N", "resize images to this height and width")] = None,
) -> None:
    """Compare methods on the same images.

    Deep kernel machines beside the kernel methods of the paper's Table 3 and a CNN: accuracy,
    log-likelihood, calibration, time, memory and numbers learned. Each method is fitted in a
    process of its own, one after another. The same command goes on where it stopped, and tries
    failed ones again; a failure does not stop the rest. The last line printed is the folder, which
    convdkm tables and convdkm report take.
    """
    if list_methods:
        _show_methods()
        return
    from convdkm.lab.baselines.methods import chosen, method
    from convdkm.lab.studies.comparison.planning import product
    from convdkm.lab.studies.comparison.request import Request

    request = Request(
        dataset=dataset,
        methods=listed(methods),
        sizes=listed(train_size),
        seeds=seeds,
        budget=budget,
        test_size=test_size,
        image_size=image_size,
        preset=preset,
        whitening=whitening,
        output=output,
        threads=threads,
    )
    scale = request.scale()
    names, wanted = request.chosen(scale), request.wanted_sizes()
    check_format(format)
    folder = request.folder(scale)
    scale = request.settled(scale, folder)
    if data_dir is not None:
        data_dir = str(Path(data_dir).expanduser().resolve())
    if is_known(scale.dataset):
        locate(scale.dataset, data_dir)
    screen = console()
    from convdkm.lab.studies.comparison.images import check_sizes, load_images
    from convdkm.lab.studies.comparison.running import one_at_a_time

    def say(text: str) -> None:
        if not quiet:
            screen.print(text, soft_wrap=True)

    data = load_images(scale, data_dir, say)
    if wanted is None:
        wanted = [min(USUAL_SIZE, len(data.train_images))]
    sizes = check_sizes(data, wanted)
    scale = request.fitting(scale, data, sizes[0], warn)
    plan = product(names, sizes, seeds)
    for each in (method(name) for name in chosen(request.methods) if name not in names):
        say(f"{each.name} is left out: without flips it is {each.without_flips}")
    if dry_run:
        _rehearse(folder, scale, plan, data, say)
        return
    with Interrupt(STOPPING) as interrupt, folder.locked():
        launcher = one_at_a_time(threads)
        report = _run(folder, scale, plan, data, launcher=launcher, stop=interrupt, say=say)
    _conclude(report, folder, interrupt, form=format)


def _show_methods() -> None:
    """Print every method: what it is, and what it needs."""
    from convdkm.lab.baselines.methods import GROUPS, METHODS, QUICK

    screen = console()
    table = plain_table("method", "group", "", "needs")
    for each in METHODS:
        there = "installed" if each.installed else "not installed"
        needs = "" if each.extra is None else f"convdkm[{each.extra}], {there}"
        table.add_row(each.name, each.group, each.about, needs)
    screen.print(table)
    screen.print(f"\nGroups: {', '.join(GROUPS)}. quick is {', '.join(QUICK)}.", soft_wrap=True)


def _announce(scale: Scale, plan: Plan, trials: Sequence[PlannedTrial], say: Say) -> None:
    from convdkm.lab.studies.planning import counted

    sizes = sorted({trial.size for trial in trials})
    seeds = max(trial.seed for trial in trials) + 1
    say(
        f"{Path(scale.dataset).name}: {counted(len(plan), 'method')} ×"
        f" {counted(len(sizes), 'training size')} ({', '.join(f'{size:,}' for size in sizes)}) ×"
        f" {counted(seeds, 'seed')}, {counted(len(trials), 'trial')}"
    )
    limit = "no limit of time" if scale.minutes is None else f"{scale.minutes:g} min a fit"
    say(f"Whitening {scale.whitening}, preset {scale.preset}, {limit}")


def _rehearse(folder: ComparisonFolder, scale: Scale, plan: Plan, data: Dataset, say: Say) -> None:
    """Show the plan, what is refused and how long kernels take; nothing is written."""
    from convdkm.lab.studies.comparison.foreseeing import expectations, refusals
    from convdkm.lab.studies.comparison.planning import planned
    from convdkm.training.view import format_duration

    trials = planned(plan)
    _announce(scale, plan, trials, say)
    done = sum(folder.finished(trial) for trial in trials)
    if done:
        say(f"{done} finished before")
    refused = refusals(trials, folder, scale, data)
    rest = [trial for trial in trials if (trial.method, trial.size) not in refused]
    expected = expectations(rest, folder, scale, data)
    for name in plan:
        for size in plan[name]:
            place = name, size
            if place in refused:
                say(f"{name}, {size:,} images: refused: {refused[place]}")
            elif place in expected:
                fit, predict = map(format_duration, expected[place])
                long = scale.minutes is not None and max(expected[place]) > 60 * scale.minutes
                more = "; refused, since that is more than the budget" if long else ""
                say(f"{name}, {size:,} images: about {fit} to fit, {predict} to predict{more}")
            else:
                say(f"{name}, {size:,} images: fits")


class _Report:
    """Says how every trial ended."""

    def __init__(self, total: int, done: int, say: Say) -> None:
        self.total, self.done, self.failed, self._say = total, done, 0, say

    @property
    def left(self) -> int:
        """Trials that have not ended."""
        return self.total - self.done - self.failed

    def begun(self, trial: PlannedTrial) -> None:
        self._say(f"[{self.done + self.failed + 1}/{self.total}] {trial.title} …")

    def add(self, trial: PlannedTrial, result: TrialResult) -> None:
        if result.state == "failed":
            self.failed += 1
            if not result.refused:
                warn(f"failed: {trial.title}: {result.error}")
            return
        from convdkm.training.view import format_duration

        self.done += 1
        short = ", cut short by the time limit" if result.cut_short else ""
        fit, predict = map(format_duration, (result.fit_seconds, result.predict_seconds))
        accuracy = result.metrics["accuracy"]
        self._say(f"    {accuracy:.2%}, fitted in {fit}, predicted in {predict}{short}")


def _run(
    folder: ComparisonFolder,
    scale: Scale,
    plan: Plan,
    data: Dataset,
    *,
    launcher: Launcher,
    stop: Interrupt,
    say: Say,
) -> _Report:
    from convdkm.lab.studies.comparison.foreseeing import refusals
    from convdkm.lab.studies.comparison.planning import planned
    from convdkm.lab.studies.comparison.running import compare

    trials = planned(plan)
    _announce(scale, plan, trials, say)
    remaining = [trial for trial in trials if not folder.finished(trial)]
    report = _Report(len(trials), len(trials) - len(remaining), say)
    if report.done:
        say(f"{report.done} finished before")
    refused = refusals(remaining, folder, scale, data)
    _tell_refusals(refused, remaining, trials)
    folder.add(scale, plan)
    with suppress(KeyboardInterrupt):  # the second Ctrl-C: what is finished is kept all the same
        for trial, result in compare(
            folder,
            remaining,
            scale,
            data,
            launcher=launcher,
            refused=refused,
            stop=stop,
            begun=report.begun,
        ):
            report.add(trial, result)
    return report


def _tell_refusals(
    refused: Mapping[Place, str],
    remaining: Sequence[PlannedTrial],
    trials: Sequence[PlannedTrial],
) -> None:
    """Say what is not tried; an error where that is everything."""
    from convdkm.lab.studies.planning import counted

    if refused and all((trial.method, trial.size) in refused for trial in trials):
        reasons = [f"{name}, {size:,} images: {why}" for (name, size), why in refused.items()]
        raise InvalidInputError(f"no method can be tried. {'. '.join(reasons)}")
    for (name, size), why in refused.items():
        count = sum((trial.method, trial.size) == (name, size) for trial in remaining)
        warn(f"refused: {name}, {size:,} images, {counted(count, 'trial')}: {why}")


def _conclude(
    report: _Report, folder: ComparisonFolder, interrupt: Interrupt, *, form: str
) -> None:
    """Tables and the page of what there is, and how to go on."""
    from convdkm.report.methods_page import write_methods_page

    written = write_comparison(folder.path, output=None, form=form)
    page = write_methods_page(folder.path, folder.path / PAGE)
    for path in (*written, page):
        say(str(path), stderr=True)
    if report.left:
        again = " ".join(map(in_shell, ["convdkm", *sys.argv[1:]]))
        say(f"Stopped with {report.done} of {report.total} trials finished. Go on with\n  {again}")
    elif report.failed:
        print(
            f"{report.done} of {report.total} trials finished, {report.failed} failed; the same"
            " command tries these again"
        )
    say_path(folder.path)
    if report.left:
        sys.exit(interrupt.exit_code)
    if report.failed:
        sys.exit(1)

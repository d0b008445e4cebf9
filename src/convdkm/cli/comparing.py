"""``convdkm compare``: the plan, the trials, and what is said about them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convdkm.cli.interrupt import Interrupt
from convdkm.cli.output import console, plain_table, say, say_path, warn
from convdkm.cli.settings import checked_dataset
from convdkm.cli.tabulating import check_format, write_comparison
from convdkm.config import RunConfig
from convdkm.data.registry import is_known, locate
from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.methods import GROUPS, METHODS, QUICK, chosen, method
from convdkm.lab.baselines.setting import Setting
from convdkm.lab.studies.comparison.folder import ComparisonFolder, Scale, TrialResult
from convdkm.lab.studies.comparison.planning import Plan, PlannedTrial, planned, product
from convdkm.lab.studies.planning import counted
from convdkm.presets import preset as preset_named
from convdkm.storage.text import in_shell
from convdkm.training.view import format_duration

if TYPE_CHECKING:
    from convdkm.data import Dataset
    from convdkm.lab.studies.comparison.foreseeing import Place
    from convdkm.lab.studies.launchers.base import Launcher

Say = Callable[[str], None]

USUAL_SIZE = 1000
PAGE = "report.html"
STOPPING = "Stopping; the trial under way is given up. Ctrl-C again stops at once."


@dataclass(frozen=True)
class Request:
    """What a user asks for, as given."""

    dataset: str | None
    methods: Sequence[str] | None
    sizes: Sequence[str] | None
    seeds: int
    budget: float
    test_size: int | None
    image_size: int | None
    preset: str
    whitening: str | None
    output: Path | None
    data_dir: str | None
    threads: int | None = None

    def scale(self) -> Scale:
        """What all trials have in common, checked."""
        if self.dataset is None:
            raise InvalidInputError(
                "name a data set to compare methods on, such as convdkm compare digits; --list"
                " lists the methods"
            )
        if not self.budget > 0:
            raise InvalidInputError(
                f"--budget must be a positive number of minutes, got {self.budget:g}"
            )
        dataset = checked_dataset(self.dataset)
        given: dict[str, Any] = {"test_size": self.test_size, "image_size": self.image_size}
        if self.whitening is not None:
            given["whitening"] = self.whitening
        there = {name: value for name, value in given.items() if value is not None}
        RunConfig.of(there, "the options")
        usual = preset_named(self.preset).config(dataset).training.whitening
        return Scale(
            dataset=dataset,
            preset=self.preset,
            whitening=self.whitening or usual,
            test_size=self.test_size,
            image_size=self.image_size,
            minutes=None if math.isinf(self.budget) else self.budget,
        )

    def chosen(self, scale: Scale) -> tuple[str, ...]:
        """The methods."""
        for name, number in (("seeds", self.seeds), ("threads", self.threads)):
            if number is not None and number < 1:
                raise InvalidInputError(f"--{name} must be at least 1, got {number}")
        flip = Setting(dataset=scale.dataset, preset=scale.preset).flip
        return chosen(self.methods, flip=flip)

    def wanted_sizes(self) -> list[int | None] | None:
        """Training sizes, None for all images; nothing where none is named."""
        if self.sizes is None:
            return None
        found: list[int | None] = []
        for text in self.sizes:
            if text == "all":
                found.append(None)
            elif text.isdecimal() and int(text) > 0:
                found.append(int(text))
            else:
                raise InvalidInputError(
                    f"--train-size takes numbers of images, such as 500,1000, or all; got {text!r}"
                )
        return found

    def folder(self, scale: Scale) -> ComparisonFolder:
        """Where it is kept."""
        name = Path(scale.dataset).stem or scale.dataset
        return ComparisonFolder(self.output or Path("comparisons") / name)

    def settled(self, scale: Scale, folder: ComparisonFolder) -> Scale:
        """The same, with the whitening of the folder where none was asked for; checked."""
        if self.whitening in (None, "auto") and folder.is_one(folder.path):
            scale = scale.model_copy(update={"whitening": folder.read().scale.whitening})
        folder.check(scale)
        return scale

    def fitting(self, scale: Scale, data: Dataset, least: int) -> Scale:
        """The same, with a whitening that so few training images can be fitted by."""
        from convdkm.data.whitening import chosen_whitening

        kind = chosen_whitening(scale.whitening, least, data.image_shape, warn)
        return scale.model_copy(update={"whitening": kind})


def show_methods() -> None:
    """Print every method: what it is, and what it needs."""
    screen = console()
    table = plain_table("method", "group", "", "needs")
    for each in METHODS:
        there = "installed" if each.installed else "not installed"
        needs = "" if each.extra is None else f"convdkm[{each.extra}], {there}"
        table.add_row(each.name, each.group, each.about, needs)
    screen.print(table)
    screen.print(f"\nGroups: {', '.join(GROUPS)}. quick is {', '.join(QUICK)}.", soft_wrap=True)


def run_comparison(request: Request, *, form: str, dry_run: bool, quiet: bool) -> None:
    """Plan, foresee, run, and show tables; the last line printed is the folder."""
    scale = request.scale()
    methods, wanted = request.chosen(scale), request.wanted_sizes()
    check_format(form)
    folder = request.folder(scale)
    scale = request.settled(scale, folder)
    data_dir = request.data_dir
    if data_dir is not None:
        data_dir = str(Path(data_dir).expanduser().resolve())
    if is_known(scale.dataset):
        locate(scale.dataset, data_dir)
    screen = console()

    def say(text: str) -> None:
        if not quiet:
            screen.print(text, soft_wrap=True)

    from convdkm.lab.studies.comparison.images import check_sizes, load_images

    data = load_images(scale, data_dir, say)
    if wanted is None:
        wanted = [min(USUAL_SIZE, len(data.train_images))]
    sizes = check_sizes(data, wanted)
    scale = request.fitting(scale, data, sizes[0])
    plan = product(methods, sizes, request.seeds)
    for each in (method(name) for name in chosen(request.methods) if name not in methods):
        say(f"{each.name} is left out: without flips it is {each.without_flips}")
    if dry_run:
        _rehearse(folder, scale, plan, data, say)
        return
    with Interrupt(STOPPING) as interrupt, folder.locked():
        launcher = make_launcher(request.threads)
        report = _run(folder, scale, plan, data, launcher=launcher, stop=interrupt, say=say)
    _conclude(report, folder, interrupt, form=form)


def _announce(scale: Scale, plan: Plan, trials: Sequence[PlannedTrial], say: Say) -> None:
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


def make_launcher(threads: int | None) -> Launcher:
    """What trials are run by."""
    from convdkm.lab.studies.comparison.running import one_at_a_time

    return one_at_a_time(threads)


def _tell_refusals(
    refused: Mapping[Place, str],
    remaining: Sequence[PlannedTrial],
    trials: Sequence[PlannedTrial],
) -> None:
    """Say what is not tried; an error where that is everything."""
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

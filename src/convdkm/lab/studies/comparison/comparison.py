"""A comparison: methods fitted to the same images, size by size and seed by seed."""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convdkm.config import RunConfig
from convdkm.data.registry import checked_dataset, is_known, locate
from convdkm.errors import ConvDKMError, InvalidInputError
from convdkm.lab.baselines.methods import chosen, method
from convdkm.lab.baselines.setting import Setting
from convdkm.lab.studies import launchers
from convdkm.lab.studies.comparison.folder import (
    ComparisonFolder,
    PlannedTrial,
    Record,
    Scale,
    TrialResult,
    product,
)
from convdkm.lab.studies.comparison.trial import TrialTask
from convdkm.lab.studies.folder import JOBS, counted
from convdkm.lab.studies.launchers.base import Launcher, Outcome, Stop, describe
from convdkm.lab.studies.study import Progress, Study, Tell
from convdkm.presets import preset as preset_named
from convdkm.training.view import format_duration

if TYPE_CHECKING:
    from convdkm.data import Dataset

USUAL_SIZE = 1000

Known = str | tuple[float, float] | None
"""Why a method is refused, or the seconds that it takes to fit and to predict if it can tell."""


def launcher_for(
    name: str,
    folder: ComparisonFolder,
    *,
    threads: int | None = None,
    jobs: int | None = None,
    retries: int = 0,
    **options: Any,
) -> Launcher:
    """The launcher of trials: on this machine one at a time by default, for comparable times.

    Args:
        threads: of a trial; on this machine by default ``OMP_NUM_THREADS``, or all cores.
        options: see :func:`~convdkm.lab.studies.launchers.make_launcher`.
    """
    if name == "local":
        usual = os.environ.get("OMP_NUM_THREADS", "")
        if threads is None and usual.isdecimal() and int(usual) > 0:
            threads = int(usual)
        jobs = 1 if jobs is None else jobs
    resources = launchers.Resources(cpus=threads, retries=retries)
    place = folder.path / JOBS
    return launchers.make_launcher(name, place, resources, jobs=jobs, device="cpu", **options)


@dataclass
class Comparison(Study[PlannedTrial, Record]):
    """Trials of methods at training sizes.

    Attributes:
        here: whether trials are made on this machine, so that its limits are known beforehand.
    """

    noun = "trial"
    stopping = "Stopping; the trial under way is given up. Ctrl-C again stops at once."
    after_failures = "the same command tries these again"
    tells_begin = True

    folder: ComparisonFolder
    data: Dataset
    here: bool
    _users: Counter[Path] = field(init=False, default_factory=Counter)

    def announcement(self) -> Iterator[str]:
        scale = self.record.scale
        sizes = sorted({trial.size for trial in self.planned})
        seeds = max(trial.seed for trial in self.planned) + 1
        yield (
            f"{Path(scale.dataset).name}: {counted(len(self.record.plan), 'method')} ×"
            f" {counted(len(sizes), 'training size')}"
            f" ({', '.join(f'{size:,}' for size in sizes)}) × {counted(seeds, 'seed')},"
            f" {counted(len(self.planned), 'trial')}"
        )
        limit = "no limit of time" if scale.minutes is None else f"{scale.minutes:g} min a fit"
        yield f"Whitening {scale.whitening}, preset {scale.preset}, {limit}"

    def foresee(
        self,
        progress: Progress[PlannedTrial],
        launcher: Launcher,
        stop: Stop,
        *,
        rehearsal: bool,
        tell: Tell,
    ) -> None:
        if rehearsal:
            known = self._known(self.planned, timed=True)
            for name, sizes in self.record.plan.items():
                for size in sizes:
                    tell.say(f"{name}, {size:,} images: {self._in_words(known[name, size])}")
            return
        if not self.here:
            return
        left = list(progress.left.values())
        known = self._known(left, timed=False)
        refused = {place: why for place, why in known.items() if isinstance(why, str)}
        if refused and all((each.method, each.size) in refused for each in self.planned):
            told = [f"{name}, {size:,} images: {why}" for (name, size), why in refused.items()]
            raise InvalidInputError(f"no method can be tried. {'. '.join(told)}")
        for (name, size), why in refused.items():
            places = [each.place for each in left if (each.method, each.size) == (name, size)]
            tell.warn(f"refused: {name}, {size:,} images, {counted(len(places), 'trial')}: {why}")
            progress.refused.update(dict.fromkeys(places, why))

    def _known(
        self, trials: Sequence[PlannedTrial], *, timed: bool
    ) -> dict[tuple[str, int], Known]:
        """What each method knows of each size without any work, but for the time of a few pairs.

        Images are drawn once for a size.
        """
        from convdkm.lab.studies.comparison.images import drawn

        first: dict[tuple[str, int], PlannedTrial] = {}
        for trial in trials:
            first.setdefault((trial.method, trial.size), trial)
        found: dict[tuple[str, int], Known] = {}
        for (size, seed), group in groupby(first.values(), lambda each: (each.size, each.seed)):
            split = drawn(self.data, size, seed)
            for trial in group:
                known: Known = None
                try:
                    baseline = method(trial.method).build(self._setting(trial))
                    if self.here:
                        baseline.foresee(split.train_images, split.train_labels)
                except ConvDKMError as error:
                    known = describe(error)
                else:
                    if timed:
                        count = len(split.test_images)
                        known = baseline.expected_seconds(split.train_images, count)
                found[trial.method, size] = known
        return found

    def _in_words(self, known: Known) -> str:
        if known is None:
            return "fits"
        if isinstance(known, str):
            return f"refused: {known}"
        fit, predict = map(format_duration, known)
        long = self.record.scale.minutes is not None and max(known) > 60 * self.record.scale.minutes
        more = "; refused, since that is more than the budget" if long else ""
        return f"about {fit} to fit, {predict} to predict{more}"

    def _setting(self, trial: PlannedTrial) -> Setting:
        """The setting that the method of a trial is built for."""
        side = min(self.data.image_shape[1:])
        kernel = self.folder.file(trial, "kernel").absolute()
        scale = self.record.scale
        return Setting(scale.dataset, trial.seed, scale.preset, side, trial.size, kernel)

    def task(self, planned: PlannedTrial) -> TrialTask:
        """One method fitted once, to images that are whitened once for all methods."""
        from convdkm.lab.studies.comparison.images import drawn, whitened

        images, scale = self.folder.images(planned), self.record.scale
        if images not in self._users:
            self._remove_images(idle=True)
            epsilon = preset_named(scale.preset).config(scale.dataset).training.zca_epsilon
            split = drawn(self.data, planned.size, planned.seed)
            whitened(split, scale.whitening, epsilon).save(images)
        self._users[images] += 1
        self.folder.file(planned).unlink(missing_ok=True)
        return TrialTask(
            planned.title,
            planned.method,
            self._setting(planned),
            scale.minutes,
            str(images.absolute()),
            str(self.folder.file(planned).absolute()),
            str(self.folder.file(planned, "log").absolute()),
        )

    def ended(self, planned: PlannedTrial, outcome: Outcome) -> TrialResult:
        """Keep the outcome of a trial; one that is done has kept its result itself."""
        refused = outcome.status == "refused"
        if not refused:
            self._users[self.folder.images(planned)] -= 1
        if outcome.status == "done":
            return TrialResult.model_validate(outcome.value)
        if outcome.status == "failed":
            # Blocks of a kernel serve a trial that was killed, not one that cannot go on.
            shutil.rmtree(self.folder.file(planned, "kernel"), ignore_errors=True)
        result = TrialResult(state="failed", error=outcome.error, refused=refused)
        self.folder.write(planned, result)
        return result

    def figures(self, status: TrialResult) -> str:
        short = ", cut short by the time limit" if status.cut_short else ""
        fit, predict = map(format_duration, (status.fit_seconds, status.predict_seconds))
        return f"{status.metrics['accuracy']:.2%}, fitted in {fit}, predicted in {predict}{short}"

    def close(self) -> None:
        self._remove_images()

    def _remove_images(self, *, idle: bool = False) -> None:
        """Remove all images, or those that no trial under way needs."""
        for images, users in list(self._users.items()):
            if not (idle and users):
                images.unlink(missing_ok=True)
                del self._users[images]
        with suppress(OSError):  # where there are others, or none were made
            (self.folder.path / "images").rmdir()


def asked_for(
    dataset: str | None,
    *,
    methods: Sequence[str] | None,
    sizes: Sequence[str] | None,
    seeds: int,
    budget: float,
    preset: str,
    whitening: str | None,
    output: Path | None,
    data_dir: str | None,
    here: bool,
    tell: Tell,
    **given: Any,
) -> Comparison:
    """The comparison that the options of ``convdkm compare`` ask for, with its images.

    Nothing is written. Where no whitening is asked for, it is that of the folder, or that of the
    preset if so few training images can be fitted by it.
    """
    if dataset is None:
        raise InvalidInputError(
            "name a data set to compare methods on, such as convdkm compare digits; --list lists"
            " the methods"
        )
    if not budget > 0:
        raise InvalidInputError(f"--budget must be a positive number of minutes, got {budget:g}")
    dataset = checked_dataset(dataset)
    options = {**given, "whitening": whitening}
    RunConfig.of({k: v for k, v in options.items() if v is not None}, "the options")
    scale = Scale(
        dataset=dataset,
        preset=preset,
        whitening=whitening or preset_named(preset).config(dataset).training.whitening,
        minutes=None if math.isinf(budget) else budget,
        **given,
    )
    if seeds < 1:
        raise InvalidInputError(f"--seeds must be at least 1, got {seeds}")
    names = chosen(methods, flip=Setting(dataset=dataset, preset=preset).flip)
    wanted = None if sizes is None else [_size(text) for text in sizes]
    folder = ComparisonFolder(output or Path("comparisons") / (Path(dataset).stem or dataset))
    if whitening in (None, "auto") and folder.is_one(folder.path):
        scale = scale.model_copy(update={"whitening": folder.read().scale.whitening})
    folder.check(scale)
    if data_dir is not None:
        data_dir = str(Path(data_dir).expanduser().resolve())
    if is_known(dataset):
        locate(dataset, data_dir)
    from convdkm.data.whitening import chosen_whitening
    from convdkm.lab.studies.comparison.images import check_sizes, load_images

    data = load_images(scale, data_dir, tell.say)
    counts = check_sizes(data, wanted or [min(USUAL_SIZE, len(data.train_images))])
    kind = chosen_whitening(scale.whitening, counts[0], data.image_shape, tell.warn)
    scale = scale.model_copy(update={"whitening": kind})
    for each in (method(name) for name in chosen(methods) if name not in names):
        tell.say(f"{each.name} is left out: without flips it is {each.without_flips}")
    record = Record(scale=scale, plan=product(names, counts, seeds))
    return Comparison(folder, record, data, here)


def _size(text: str) -> int | None:
    """A training size; None for all images."""
    if text == "all":
        return None
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise InvalidInputError(
        f"--train-size takes numbers of images, such as 500,1000, or all; got {text!r}"
    )

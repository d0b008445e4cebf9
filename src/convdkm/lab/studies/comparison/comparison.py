"""A comparison: methods fitted to the same images, size by size and seed by seed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from convdkm.data import Dataset
from convdkm.errors import ConvDKMError, InvalidInputError
from convdkm.lab.baselines.methods import method
from convdkm.lab.baselines.setting import Setting
from convdkm.lab.studies import launchers
from convdkm.lab.studies.comparison.folder import (
    ComparisonFolder,
    PlannedTrial,
    Record,
    TrialResult,
)
from convdkm.lab.studies.comparison.images import drawn, whitened
from convdkm.lab.studies.comparison.trial import TrialTask
from convdkm.lab.studies.folder import JOBS, counted
from convdkm.lab.studies.launchers.base import Launcher, Outcome, Stop, describe
from convdkm.lab.studies.study import Progress, Study, Tell
from convdkm.presets import preset
from convdkm.training.view import format_duration

Place = tuple[str, int]
"""A method, and a training size."""
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
    """What trials are made by: on this machine one at a time, so that its cores are a method's own.

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
        here: trials are made on this machine, so that what it has not is known beforehand.
    """

    noun = "trial"
    stopping = "Stopping; the trial under way is given up. Ctrl-C again stops at once."
    after_failures = "the same command tries these again"
    tells_begin = True

    folder: ComparisonFolder
    data: Dataset
    here: bool = True
    _users: dict[Path, int] = field(init=False, default_factory=dict)

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
        asked = self.planned if rehearsal else list(progress.left.values())
        known = self._known(asked, timed=rehearsal) if rehearsal or self.here else {}
        if rehearsal:
            for name, sizes in self.record.plan.items():
                for size in sizes:
                    tell.say(f"{name}, {size:,} images: {self._in_words(known[name, size])}")
            return
        refused = {place: why for place, why in known.items() if isinstance(why, str)}
        reasons = {place: f"{place[0]}, {place[1]:,} images" for place in refused}
        if refused and all((each.method, each.size) in refused for each in self.planned):
            told = [f"{reasons[place]}: {why}" for place, why in refused.items()]
            raise InvalidInputError(f"no method can be tried. {'. '.join(told)}")
        for place, why in refused.items():
            trials = [each for each in asked if (each.method, each.size) == place]
            tell.warn(f"refused: {reasons[place]}, {counted(len(trials), 'trial')}: {why}")
            progress.refused.update({each.place: why for each in trials})

    def _known(self, asked: Sequence[PlannedTrial], *, timed: bool) -> dict[Place, Known]:
        """What is known of each method and size without any work, but for the time of a few pairs.

        Images are drawn once for a size.
        """
        first: dict[Place, PlannedTrial] = {}
        for trial in asked:
            first.setdefault((trial.method, trial.size), trial)
        found: dict[Place, Known] = {}
        for (size, seed), group in groupby(first.values(), lambda each: (each.size, each.seed)):
            split = drawn(self.data, size, seed)
            for trial in group:
                try:
                    baseline = method(trial.method).build(self._setting(trial))
                    if self.here:
                        baseline.foresee(split.train_images, split.train_labels)
                except ConvDKMError as error:
                    found[trial.method, size] = describe(error)
                else:
                    predicted = len(split.test_images)
                    found[trial.method, size] = (
                        baseline.expected_seconds(split.train_images, predicted) if timed else None
                    )
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
        """What the method of a trial is made for."""
        side = min(self.data.image_shape[1:])
        kernel = self.folder.file(trial, "kernel").absolute()
        scale = self.record.scale
        return Setting(scale.dataset, trial.seed, scale.preset, side, trial.size, kernel)

    def task(self, planned: PlannedTrial) -> TrialTask:
        """One method fitted once, to images that are whitened once for all methods."""
        images, scale = self.folder.images(planned), self.record.scale
        if images not in self._users:
            self._remove_images(idle=True)
            epsilon = preset(scale.preset).config(scale.dataset).training.zca_epsilon
            split = drawn(self.data, planned.size, planned.seed)
            whitened(split, scale.whitening, epsilon).save(images)
        self._users[images] = self._users.get(images, 0) + 1
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
        """A trial that was done has kept its result itself."""
        if outcome.status != "refused":
            self._users[self.folder.images(planned)] -= 1
        if outcome.status == "done":
            return TrialResult.model_validate(outcome.value)
        if outcome.status == "failed":
            # Blocks of a kernel serve a trial that was killed, not one that cannot go on.
            shutil.rmtree(self.folder.file(planned, "kernel"), ignore_errors=True)
        refused = outcome.status == "refused"
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
        """All of them, or those that no trial under way needs."""
        for images, users in list(self._users.items()):
            if not (idle and users):
                images.unlink(missing_ok=True)
                del self._users[images]
        with suppress(OSError):  # where there are others, or none were made
            (self.folder.path / "images").rmdir()

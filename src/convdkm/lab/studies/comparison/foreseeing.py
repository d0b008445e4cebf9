"""What cannot be done is said before any work: memory, disk, packages, and where known, time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from torch import Tensor

from convdkm.data import Dataset
from convdkm.errors import ConvDKMError, InvalidInputError
from convdkm.lab.baselines.base import Baseline
from convdkm.lab.baselines.kernels.progress import duration
from convdkm.lab.baselines.methods import method
from convdkm.lab.baselines.setting import Setting
from convdkm.lab.studies.comparison.folder import ComparisonFolder, Scale
from convdkm.lab.studies.comparison.images import Split, drawn
from convdkm.lab.studies.comparison.planning import PlannedTrial
from convdkm.lab.studies.launchers.base import describe

Place = tuple[str, int]
"""A method, and a training size."""


def setting_of(trial: PlannedTrial, scale: Scale, data: Dataset, kernel: Path) -> Setting:
    """What the method of a trial is made for."""
    side = min(data.image_shape[1:])
    return Setting(scale.dataset, trial.seed, scale.preset, side, trial.size, kernel)


def check_time(baseline: Baseline, images: Tensor, predicted: int, minutes: float) -> None:
    """Raise where predictions are known to take longer than ``minutes``."""
    expected = baseline.expected_seconds(images, predicted)
    if expected is None or expected[1] <= 60 * minutes:
        return
    fits = int(predicted * 60 * minutes / expected[1])
    raise InvalidInputError(
        f"predicting {predicted:,} test images takes about {duration(expected[1])}, more than the"
        f" {minutes:g} min allowed; use --test-size {fits} or less, fewer training images, or more"
        " time (--budget)"
    )


def refusals(
    trials: Iterable[PlannedTrial], folder: ComparisonFolder, scale: Scale, data: Dataset
) -> dict[Place, str]:
    """Why methods cannot be tried at some sizes, as far as that is known without any work."""
    found: dict[Place, str] = {}
    for trial, split in _first_of_each(trials, data):
        try:
            baseline = _baseline(trial, folder, scale, data)
            baseline.foresee(split.train_images, split.train_labels)
        except ConvDKMError as error:
            found[trial.method, trial.size] = describe(error)
    return found


def expectations(
    trials: Iterable[PlannedTrial], folder: ComparisonFolder, scale: Scale, data: Dataset
) -> dict[Place, tuple[float, float]]:
    """Seconds to fit and to predict, of methods that can tell, by the time of a short trial."""
    found: dict[Place, tuple[float, float]] = {}
    for trial, split in _first_of_each(trials, data):
        baseline = _baseline(trial, folder, scale, data)
        expected = baseline.expected_seconds(split.train_images, len(split.test_images))
        if expected is not None:
            found[trial.method, trial.size] = expected
    return found


def _baseline(
    trial: PlannedTrial, folder: ComparisonFolder, scale: Scale, data: Dataset
) -> Baseline:
    kernel = folder.file(trial, "kernel")
    return method(trial.method).build(setting_of(trial, scale, data, kernel))


def _first_of_each(
    trials: Iterable[PlannedTrial], data: Dataset
) -> Iterator[tuple[PlannedTrial, Split]]:
    """One trial of each method and size, with its images; these are drawn once for a size."""
    first: dict[Place, PlannedTrial] = {}
    for trial in trials:
        first.setdefault((trial.method, trial.size), trial)
    for (size, seed), group in groupby(first.values(), lambda each: (each.size, each.seed)):
        split = drawn(data, size, seed)
        for trial in group:
            yield trial, split

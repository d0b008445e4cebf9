"""Everything that a page shows of a run, gathered; what cannot be had is noted with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from convdkm.config import RunConfig
from convdkm.data import Dataset
from convdkm.errors import ConvDKMError, InvalidInputError
from convdkm.insight.look import Insight, look_into
from convdkm.report.outcome import Outcome
from convdkm.report.record import Record
from convdkm.training.checkpoint import CheckpointError, Which
from convdkm.training.run import Run
from convdkm.training.sources import kept

SAMPLE = 400
"""Images that the figures of layers come from."""

Tell = Callable[[str], None]
Load = Callable[[Run, Tell], Dataset]
"""Gives the data of a run, and tells how it differs from what it was."""


@dataclass(eq=False)
class Findings:
    """A run, predictions of its test images and its machine looked into, as far as there are any.

    There is no machine without a checkpoint that can be read. ``num_data`` counts the training
    images; ``missing`` tells the reader of the page what is not there, and why.
    """

    record: Record
    run: Run | None = None
    outcome: Outcome | None = None
    insight: Insight | None = None
    num_data: int | None = None
    missing: list[str] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, float]:
        """The figures of the record; those of the test images from the predictions, if any."""
        metrics = {} if self.outcome is None else self.outcome.metrics
        return self.record.figures | {f"test_{name}": value for name, value in metrics.items()}


def gather(
    folder: Path,
    load: Load | None,
    checkpoint: Which,
    device: str | None,
    *,
    deep: bool,
    tell: Tell,
) -> Findings:
    """All that can be found out about the run in a folder; see :func:`examine`.

    A checkpoint other than the last has to be there.
    """
    record = Record.read(folder)
    try:
        run = Run.open(folder, checkpoint, device=device)
    except (CheckpointError, InvalidInputError) as error:
        if checkpoint != "last" or not record.has_curves:
            raise
        return Findings(record, missing=[f"Nothing of the machine itself: {error}."])
    found = examine(run, record, load, deep=deep, tell=tell)
    if run.warning is not None:
        tell(f"warning: {run.warning}")
        found.missing.append(f"{run.warning}.")
    return found


def examine(
    run: Run, record: Record, load: Load | None, *, deep: bool = True, tell: Tell = lambda _: None
) -> Findings:
    """All that can be found out about a run that is open.

    Without ``load``, what needs images is left out; without ``deep``, what is inside the layers.
    ``tell`` is told what is being done.
    """
    found = Findings(record, run)
    missing, data = found.missing, None

    def note(text: str) -> None:
        missing.append(f"{text}.")
        tell(text)

    if load is None:
        missing.append("Nothing that needs images, which were not asked for.")
    else:
        try:
            data = load(run, note)
        except (ConvDKMError, OSError) as error:
            kinds = "calibration, confusions, pictures, similarity"
            missing.append(f"Nothing that needs images ({kinds}): {error}.")
    if data is not None:
        found.num_data = len(data.train_images)
        if data.has_test:
            tell(f"predicting {len(data.test_images):,} test images")
            prediction = run.predict(data.test_images).cpu()
            found.outcome = Outcome(data.test_images, data.test_labels, prediction, run.class_names)
        else:
            missing.append("No predictions: the data set has no test images.")
    if deep:
        tell("looking into the layers")
        found.insight = _insight(run, data)
        if found.insight.unseen:
            inside = ", ".join(found.insight.unseen)
            missing.append(f"Gram layers inside layers of your own are left out: {inside}.")
    if not record.has_curves:
        in_memory = "the run is kept in memory, and has no record"
        reason = f"{record.folder} holds no record of a step" if record.folder else in_memory
        missing.append(f"No learning curves: {reason}.")
    return found


def of_settings(run: Run, tell: Tell, config: RunConfig | None = None) -> Dataset:
    """The images that a run's settings (or others) name, without those held out for validation."""
    config = run.config if config is None else config
    data = kept(config, run.folder, tell=tell).dataset
    if data.image_shape != tuple(run.image_shape) or data.class_names != run.class_names:
        raise InvalidInputError(
            f"{run.config.data.dataset} has {data.num_classes} classes and images"
            f" {data.image_shape}, but the run was made with {len(run.class_names)} classes and"
            f" images {tuple(run.image_shape)}"
        )
    return data


def _insight(run: Run, data: Dataset | None) -> Insight:
    if data is None:
        return look_into(run.model)
    images, labels = data.train_images, data.train_labels
    if data.has_test:
        images, labels = data.test_images, data.test_labels
    some = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    whitened = run.whitening(images[some].to(run.model.device))
    return look_into(run.model, whitened, labels[some])

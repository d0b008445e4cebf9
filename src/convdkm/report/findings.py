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
from convdkm.prediction import ClassPrediction
from convdkm.report.outcome import Outcome
from convdkm.report.record import Record
from convdkm.training.checkpoint import CheckpointError, Which
from convdkm.training.run import Run
from convdkm.training.sources import kept

SAMPLE = 400
"""Images that the figures of layers come from."""

Tell = Callable[[str], None]
Load = Callable[[Run, Tell], "Dataset | None"]


@dataclass(eq=False)
class Findings:
    """A run with its predictions and its machine looked into, as far as they can be had.

    Attributes:
        record: what its folder says.
        run: the machine; None without a checkpoint that can be read.
        outcome: predictions of the test images.
        insight: the machine, layer by layer.
        num_data: training images.
        missing: what is not there, and why, for the reader of the page.
    """

    record: Record
    run: Run | None = None
    outcome: Outcome | None = None
    insight: Insight | None = None
    num_data: int | None = None
    missing: list[str] = field(default_factory=list)


def gather(
    folder: Path,
    *,
    checkpoint: Which = "last",
    device: str | None = None,
    load: Load | None = None,
    deep: bool = True,
    tell: Tell = lambda _: None,
) -> Findings:
    """All that can be found out about the run in a folder.

    Args:
        folder: of the run.
        checkpoint: which one to look at; one that is asked for by name has to be there.
        device: where to compute.
        load: gives the data of a run, and tells what is wrong; by its settings if not given.
        deep: look into the layers as well.
        tell: is told what is being done.
    """
    record = Record.read(folder)
    try:
        run = Run.open(folder, checkpoint, device=device)
    except (CheckpointError, InvalidInputError) as error:
        if checkpoint != "last" or not record.has_curves:
            raise
        found = Findings(record, missing=[f"Nothing of the machine itself: {error}."])
    else:
        found = examine(run, record, load=load, deep=deep, tell=tell)
        if run.warning is not None:
            tell(f"warning: {run.warning}")
            found.missing.append(f"{run.warning}.")
    if not record.has_curves:
        found.missing.append(f"No learning curves: {folder} holds no record of a step.")
    return found


def examine(
    run: Run,
    record: Record | None = None,
    *,
    load: Load | None = None,
    deep: bool = True,
    tell: Tell = lambda _: None,
) -> Findings:
    """All that can be found out about a run that is open."""
    found = Findings(Record.of(run) if record is None else record, run)
    data: Dataset | None = None

    def note(text: str) -> None:
        found.missing.append(f"{text}.")
        tell(text)

    try:
        data = (load or of_settings)(run, note)
    except (ConvDKMError, OSError) as error:
        found.missing.append(
            f"Nothing that needs images (calibration, confusions, pictures, similarity): {error}."
        )
    if data is not None:
        found.num_data = len(data.train_images)
        if data.has_test:
            tell(f"predicting {len(data.test_images):,} test images")
            found.outcome = _outcome(run, data)
        else:
            found.missing.append("No predictions: the data set has no test images.")
    elif not found.missing:
        found.missing.append("Nothing that needs images, which were not asked for.")
    if deep:
        tell("looking into the layers")
        found.insight = _insight(run, data)
        if found.insight.unseen:
            inside = ", ".join(found.insight.unseen)
            found.missing.append(f"Gram layers inside layers of your own are left out: {inside}.")
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


def no_images(run: Run, tell: Tell) -> None:
    """Leaves out what needs images."""
    del run, tell


def _outcome(run: Run, data: Dataset) -> Outcome:
    prediction = run.predict(data.test_images)
    expected = prediction.expected_entropy
    here = ClassPrediction(
        prediction.mean.cpu(),
        prediction.variance.cpu(),
        prediction.log_probs.cpu(),
        None if expected is None else expected.cpu(),
    )
    return Outcome(data.test_images, data.test_labels, here, run.class_names)


def _insight(run: Run, data: Dataset | None) -> Insight:
    if data is None:
        return look_into(run.model)
    images, labels = data.train_images, data.train_labels
    if data.has_test:
        images, labels = data.test_images, data.test_labels
    some = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    whitened = run.whitening(images[some].to(run.model.device))
    return look_into(run.model, whitened, labels[some])

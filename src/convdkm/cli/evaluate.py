"""``convdkm evaluate``."""

from __future__ import annotations

import json
from pathlib import Path

from convdkm.allocator import keep_freed_memory
from convdkm.checks import check_choice
from convdkm.cli.output import console, metrics_table, warn
from convdkm.cli.settings import checked_dataset
from convdkm.errors import InvalidInputError
from convdkm.training.checkpoint import Which
from convdkm.training.run import Run, class_metrics
from convdkm.training.sources import load_dataset, prepared


def open_run(folder: Path, checkpoint: str, device: str | None) -> Run:
    """A run from its folder; a damaged checkpoint is reported."""
    check_choice("--checkpoint", checkpoint, Which)
    run = Run.open(folder, checkpoint, device=device)  # type: ignore[arg-type]
    if run.warning is not None:
        warn(run.warning)
    return run


def evaluate_run(
    folder: Path,
    *,
    data: str | None,
    data_dir: str | None,
    checkpoint: str,
    train: bool,
    device: str | None,
    as_json: bool,
) -> None:
    """Print the figures of a run on its test images, or on another set."""
    run = open_run(folder, checkpoint, device)
    if run.model.device.type == "cpu":
        keep_freed_memory()
    changes = {"dataset": data and checked_dataset(data), "data_dir": data_dir}
    config = run.config.updated({name: v for name, v in changes.items() if v is not None})
    dataset = load_dataset(config, warn)
    if data is None:
        dataset, held_out = prepared(dataset, config.data)
        parts = {"test": (dataset.test_images, dataset.test_labels)}
        if held_out is not None:
            parts["validation"] = held_out
    else:
        if dataset.class_names != run.class_names:
            raise InvalidInputError(
                f"{data} has the classes {', '.join(dataset.class_names)}, but the model was"
                f" trained on {', '.join(run.class_names)}"
            )
        dataset = dataset if dataset.has_test else dataset.with_split(config.data.test_fraction)
        parts = {"test": (dataset.test_images, dataset.test_labels)}
    if train:
        parts["train"] = (dataset.train_images, dataset.train_labels)
    metrics: dict[str, float] = {}
    for part, (images, labels) in parts.items():
        metrics |= class_metrics(part, run.evaluate(images, labels))
        metrics[f"{part}_images"] = len(images)
    if as_json:
        print(json.dumps(metrics, indent=2))
    else:
        console().print(metrics_table(metrics))

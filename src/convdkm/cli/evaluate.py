"""``convdkm evaluate``."""

from __future__ import annotations

import json
from pathlib import Path

from convdkm.checks import check_choice
from convdkm.cli.output import console, metrics_table, warn
from convdkm.cli.settings import checked_dataset
from convdkm.data.split_record import PARTS
from convdkm.errors import InvalidInputError
from convdkm.runtime.allocator import keep_freed_memory
from convdkm.training.checkpoint import Which
from convdkm.training.run import Run, class_metrics
from convdkm.training.sources import kept, to_score


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
    config = run.config if data_dir is None else run.config.updated({"data_dir": data_dir})
    if data is None:
        images = kept(config, folder, tell=warn)
    else:
        images = to_score(config, folder, checked_dataset(data), run.class_names, warn)
    parts = {"test": images.parts["test"]}
    if validation := images.parts.get("validation"):
        parts["validation"] = validation
    if train:
        if "train" not in images.parts:
            raise InvalidInputError(f"--train: {data} has no training part, all of it is test data")
        parts["train"] = images.parts["train"]
    place = data or config.data.dataset
    metrics: dict[str, float] = {}
    for name, part in parts.items():
        if not len(part):
            raise InvalidInputError(f"none of the {PARTS[name]} images of {folder} is in {place}")
        metrics |= class_metrics(name, run.evaluate(part.images, part.labels))
        metrics[f"{name}_images"] = len(part)
    if as_json:
        print(json.dumps(metrics, indent=2))
    else:
        console().print(metrics_table(metrics))

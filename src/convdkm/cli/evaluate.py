"""``convdkm evaluate``."""

from __future__ import annotations

from json import dumps
from typing import Annotated

from convdkm.cli.arguments import (
    CheckpointName,
    DataDir,
    Device,
    RunOrMachine,
    ViewsOption,
    option,
    switch,
)
from convdkm.cli.output import console, metrics_table, warn
from convdkm.data.registry import checked_dataset, is_known
from convdkm.errors import InvalidInputError


def evaluate(
    run: RunOrMachine,
    data: Annotated[
        str | None,
        option(
            "DATASET",
            "another data set of the same classes; or where the images of the run are now, if they"
            " have moved",
        ),
    ] = None,
    data_dir: DataDir = None,
    checkpoint: CheckpointName = "last",
    *,
    train: Annotated[bool, switch("--train", "evaluate on the training images as well")] = False,
    views: ViewsOption = None,
    device: Device = None,
    json: Annotated[bool, switch("--json", "print the results as JSON")] = False,
) -> None:
    """Print accuracy, log-likelihood and calibration.

    By default on the test images of the run, with its last checkpoint. With --data, on the test
    part of another data set, or on all of it if it has none; images that the run was trained on are
    left out.
    """
    from convdkm.cli.inputs import checked_views, open_run
    from convdkm.data.split_record import PARTS
    from convdkm.runtime.allocator import keep_freed_memory
    from convdkm.training.run import class_metrics
    from convdkm.training.sources import kept, to_score
    from convdkm.views import Views

    opened = open_run(run, checkpoint, device)
    seen = checked_views(views)
    if opened.model.device.type == "cpu":
        keep_freed_memory()
    config = opened.config if data_dir is None else opened.config.updated({"data_dir": data_dir})
    if data is None and opened.folder is None and not is_known(config.data.dataset):
        raise InvalidInputError(
            f"{run} does not say which images it was not trained on; name some with --data"
        )
    if data is None:
        images = kept(config, opened.folder, tell=warn)
    else:
        images = to_score(config, opened.folder, checked_dataset(data), opened.class_names, warn)
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
            raise InvalidInputError(f"none of the {PARTS[name]} images of {run} is in {place}")
        metrics |= class_metrics(name, opened.evaluate(part.images, part.labels, views=seen))
        metrics[f"{name}_images"] = len(part)
    metrics["views"] = Views(seen or config.training.views).count
    if json:
        print(dumps(metrics, indent=2))
    else:
        console().print(metrics_table(metrics))

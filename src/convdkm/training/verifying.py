"""Whether the files of a run, and of its exported machines, are what was written."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from convdkm.config import RunConfig
from convdkm.data.split_record import SplitRecord
from convdkm.errors import ConvDKMError, InvalidInputError
from convdkm.predicting.saving import load_predictor
from convdkm.storage.finding import Finding, checked_file, checked_text, reason_of, values_of
from convdkm.storage.tensor_file import key_of
from convdkm.training.checkpoint import FILES as CHECKPOINT
from convdkm.training.checkpoint import Checkpoint, CheckpointStore, Which, read_checkpoint
from convdkm.training.folder import (
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    METRICS,
    SPLIT,
    read_config,
    same_machine,
)
from convdkm.training.run import require_fit
from convdkm.training.sinks import read_csv, read_layers


def _tensors(path: Path) -> None:
    read = read_checkpoint if key_of(path) == CHECKPOINT.key else load_predictor
    read(path)


def _program(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        wrong = archive.testzip()
    if wrong is not None:
        raise InvalidInputError(f"the checksum of {wrong} in it is wrong")


def _onnx(path: Path) -> None:
    if find_spec("onnx") is not None:
        import onnx

        onnx.load(path)


EXPORTED = {".safetensors": _tensors, ".onnx": _onnx, ".pt2": _program}
"""How exported files are read, by their endings; an error if they make no sense."""


def verify_file(path: Path) -> Finding:
    """Check an exported file, or a checkpoint."""
    return checked_file(path, EXPORTED[path.suffix.lower()])


def verify_run(folder: Path) -> Iterator[Finding]:
    """Check every file of the folder of a run."""
    found: dict[str, Checkpoint] = {}
    config, wrong = None, None
    try:
        config, wrong = read_config(folder)
    except ConvDKMError as error:
        wrong = reason_of(error, folder / CONFIG)

    def read(path: Path) -> None:
        checkpoint = read_checkpoint(path)
        if config is not None:
            require_fit(checkpoint, same_machine(config, checkpoint)[0])
        found[path.stem] = checkpoint

    store = CheckpointStore(folder / CHECKPOINTS)
    present = [each for each in get_args(Which) if store.path(each).exists()]
    checkpoints = [checked_file(store.path(each), read) for each in present]
    if not present:
        checkpoints.append(Finding(store.folder, "readable", "there is no checkpoint yet"))
    elif "last" not in present:
        checkpoints.append(Finding(store.path("last"), "damaged", "it is missing"))
    last = found.get("last")
    if config is None or wrong is not None:
        yield Finding(folder / CONFIG, "damaged", wrong or "")
    else:
        yield checked_text(folder / CONFIG, lambda _: _compared(config, last))
    yield from checkpoints
    step = None if last is None else last.progress.step
    for name, look in (
        (SPLIT, _images),
        (ENVIRONMENT, lambda path: f"{len(values_of(path))} entries"),
        (METRICS, lambda path: _figures(path, step)),
        ("steps.csv", lambda path: _steps(path, step or 0)),
        ("epochs.csv", lambda path: f"{len(read_csv(path))} epochs"),
        ("layers.csv", lambda path: f"{len(read_layers(path))} epochs"),
    ):
        if (folder / name).exists():
            yield checked_text(folder / name, look)


def _compared(config: RunConfig, last: Checkpoint | None) -> str:
    """What differs from the settings of a checkpoint: ``resume`` may change some."""
    if last is None:
        return ""
    _, another = same_machine(config, last)
    if another is not None:
        raise InvalidInputError(another)
    before = RunConfig.of(last.value("config")).flat()
    return "; ".join(
        f"{name} is {value!r}, and was {before[name]!r} at the last checkpoint"
        for name, value in config.flat().items()
        if before[name] != value
    )


def _images(path: Path) -> str:
    split = SplitRecord.read(path)
    return f"{sum(map(len, split.parts.values())) if split else 0} images"


def _figures(path: Path, step: int | None) -> str:
    metrics = values_of(path)
    if step is not None and metrics.get("steps", step) != step:
        raise InvalidInputError(
            f"it is of step {metrics['steps']}, and the last checkpoint of {step}"
        )
    return f"{len(metrics)} figures"


def _steps(path: Path, through: int) -> str:
    """The steps have to be there one by one, as far as the last checkpoint goes."""
    count = 0
    for count, row in enumerate(read_csv(path), 1):
        if int(row["step"]) != count:
            raise InvalidInputError(f"step {int(row['step'])} stands where step {count} should")
    if count < through:
        raise InvalidInputError(
            f"it ends at step {count}, and the last checkpoint is of step {through}"
        )
    return f"{count} steps"

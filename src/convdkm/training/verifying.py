"""Whether the files of a run, and of its exported machines, are what was written."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

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
    if key_of(path) == CHECKPOINT.key:
        read_checkpoint(path)
    else:
        load_predictor(path)


def _program(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        wrong = archive.testzip()
    if wrong is not None:
        raise InvalidInputError(f"the checksum of {wrong} in it is wrong")


def _onnx(path: Path) -> None:
    if find_spec("onnx") is not None:
        import onnx

        onnx.load(path)


EXPORTED: dict[str, Callable[[Path], None]] = {
    ".safetensors": _tensors,
    ".onnx": _onnx,
    ".pt2": _program,
}
"""How exported files are read, by their endings; an error if they make no sense."""


def verify_file(path: Path) -> Finding:
    """Check an exported file, or a checkpoint."""
    return checked_file(path, EXPORTED[path.suffix.lower()])


def verify_run(folder: Path) -> Iterator[Finding]:
    """Check every file of the folder of a run."""
    found: dict[str, Checkpoint] = {}
    config, wrong = None, ""
    try:
        config, warning = read_config(folder)
        wrong = warning or ""
    except ConvDKMError as error:
        wrong = reason_of(error, folder / CONFIG)

    def read(path: Path) -> None:
        checkpoint = read_checkpoint(path)
        if config is not None:
            require_fit(checkpoint, same_machine(config, checkpoint.description.get("config"))[0])
        found[path.stem] = checkpoint

    store = CheckpointStore(folder / CHECKPOINTS)
    present = [each for each in get_args(Which) if store.path(each).exists()]
    checkpoints = [checked_file(store.path(each), read) for each in present]
    if not present:
        checkpoints.append(Finding(store.folder, "readable", "there is no checkpoint yet"))
    elif "last" not in present:
        checkpoints.append(Finding(store.path("last"), "damaged", "it is missing"))
    last = found.get("last")
    if wrong or config is None:
        yield Finding(folder / CONFIG, "damaged", wrong)
    else:
        yield checked_text(folder / CONFIG, lambda _: _compared(config, last))
    yield from checkpoints
    step = 0 if last is None else last.progress.step
    for name, look in (
        (SPLIT, lambda path: _images(SplitRecord.read(path))),
        (ENVIRONMENT, lambda path: f"{len(values_of(path))} entries"),
        (METRICS, lambda path: _of_step(values_of(path), last)),
        ("steps.csv", lambda path: _steps(path, step)),
        ("epochs.csv", lambda path: f"{len(read_csv(path))} epochs"),
        ("layers.csv", lambda path: f"{len(read_layers(path))} epochs"),
    ):
        if (folder / name).exists():
            yield checked_text(folder / name, look)


def _compared(config: RunConfig, last: Checkpoint | None) -> str:
    """What differs from the settings of a checkpoint: ``resume`` may change some."""
    trained = None if last is None else last.description.get("config")
    _, another = same_machine(config, trained)
    if another is not None:
        raise InvalidInputError(another)
    flat = RunConfig.of(trained).flat() if trained else config.flat()
    return "; ".join(
        f"{name} is {value!r}, and was {flat[name]!r} at the last checkpoint"
        for name, value in config.flat().items()
        if flat[name] != value
    )


def _images(split: SplitRecord | None) -> str:
    parts = {} if split is None else split.parts
    return f"{sum(map(len, parts.values()))} images"


def _of_step(metrics: dict[str, Any], last: Checkpoint | None) -> str:
    if last is not None and metrics.get("steps", last.progress.step) != last.progress.step:
        raise InvalidInputError(
            f"it is of step {metrics['steps']}, and the last checkpoint of {last.progress.step}"
        )
    return f"{len(metrics)} figures"


def _steps(path: Path, through: int) -> str:
    """The steps have to be there one by one, as far as the last checkpoint goes."""
    numbers = [int(row["step"]) for row in read_csv(path)]
    expected = range(1, len(numbers) + 1)
    for number, right in zip(numbers, expected, strict=True):
        if number != right:
            raise InvalidInputError(f"step {number} stands where step {right} should")
    if len(numbers) < through:
        raise InvalidInputError(
            f"it ends at step {len(numbers)}, and the last checkpoint is of step {through}"
        )
    return f"{len(numbers)} steps"

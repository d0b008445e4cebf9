"""Whether files are what was written: runs, exported machines, kernels on disk."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from convdkm.config import RunConfig
from convdkm.data.split_record import SplitRecord
from convdkm.errors import ConvDKMError, InvalidInputError
from convdkm.lab.baselines.kernels.store import MANIFEST, block_name, check_block
from convdkm.predicting.saving import load_predictor
from convdkm.storage.digests import check_digest
from convdkm.storage.tensor_file import key_of
from convdkm.training.checkpoint import FILES as CHECKPOINT
from convdkm.training.checkpoint import Checkpoint, CheckpointStore, Which, read_checkpoint
from convdkm.training.folder import (
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    MARKER,
    METRICS,
    SPLIT,
    read_config,
    same_machine,
)
from convdkm.training.run import require_fit
from convdkm.training.sinks import read_csv, read_layers

State = Literal["ok", "readable", "no digest", "damaged"]
OLD = "written by an older version: it can be read, but not checked"


@dataclass(frozen=True)
class Finding:
    """What is known of a file.

    Attributes:
        path: of the file.
        state: ``ok`` if it is, bit for bit, what was written; ``readable`` for tables and settings,
            which have no digest and make sense; ``no digest`` for a file that should have one but
            is older; or ``damaged``.
        detail: why.
    """

    path: Path
    state: State
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.state}{self.detail and f' ({self.detail})'}"


def verify(path: str | Path) -> Iterator[Finding]:
    """Check the folder of a run or of a kernel, or an exported file.

    Raises:
        InvalidInputError: it is none of these.
    """
    path = Path(path)
    if any((path / name).exists() for name in (MARKER, CONFIG, CHECKPOINTS)):
        return _run(path)
    if (path / MANIFEST).is_file():
        return _kernel(path)
    check = _FILES.get(path.suffix.lower())
    if check is None or not path.is_file():
        reason = "there is nothing of that name" if not path.exists() else "it is something else"
        raise InvalidInputError(
            f"{path} is neither the folder of a run or of a kernel on disk, nor an exported file"
            f" ({', '.join(_FILES)}): {reason}"
        )
    return iter([_file(path, check)])


def _file(path: Path, read: Callable[[Path], Any]) -> Finding:
    """A file that has a digest; ``read`` raises if it makes no sense."""
    try:
        has_digest = check_digest(path)
        read(path)
    except Exception as error:  # whatever it is, the file is not what was written
        return Finding(path, "damaged", _line(error, path))
    return Finding(path, "ok") if has_digest else Finding(path, "no digest", OLD)


def _text(path: Path, read: Callable[[Path], str]) -> Finding:
    """A file without a digest; ``read`` tells what there is to know of it, and raises."""
    try:
        return Finding(path, "readable", read(path))
    except Exception as error:
        return Finding(path, "damaged", _line(error, path))


def _line(error: Exception, path: Path) -> str:
    text = " ".join(str(error).split()) or repr(error)
    return text.removeprefix(f"{path} ").removeprefix("is damaged: ")


# -- exported files ----------------------------------------------------------------------------


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


_FILES: dict[str, Callable[[Path], None]] = {
    ".safetensors": _tensors,
    ".onnx": _onnx,
    ".pt2": _program,
}


# -- runs --------------------------------------------------------------------------------------


def _run(folder: Path) -> Iterator[Finding]:
    found: dict[str, Checkpoint] = {}
    config, wrong = None, ""
    try:
        config, warning = read_config(folder)
        wrong = warning or ""
    except ConvDKMError as error:
        wrong = _line(error, folder / CONFIG)

    def read(path: Path) -> None:
        checkpoint = read_checkpoint(path)
        if config is not None:
            require_fit(checkpoint, same_machine(config, checkpoint.description.get("config"))[0])
        found[path.stem] = checkpoint

    store = CheckpointStore(folder / CHECKPOINTS)
    present = [each for each in get_args(Which) if store.path(each).exists()]
    checkpoints = [_file(store.path(each), read) for each in present]
    if not present:
        checkpoints.append(Finding(store.folder, "readable", "there is no checkpoint yet"))
    elif "last" not in present:
        checkpoints.append(Finding(store.path("last"), "damaged", "it is missing"))
    last = found.get("last")
    if wrong or config is None:
        yield Finding(folder / CONFIG, "damaged", wrong)
    else:
        yield _text(folder / CONFIG, lambda _: _compared(config, last))
    yield from checkpoints
    step = 0 if last is None else last.progress.step
    for name, look in (
        (SPLIT, lambda path: _images(SplitRecord.read(path))),
        (ENVIRONMENT, lambda path: f"{len(_mapping(path))} entries"),
        (METRICS, lambda path: _of_step(_mapping(path), last)),
        ("steps.csv", lambda path: _steps(path, step)),
        ("epochs.csv", lambda path: f"{len(read_csv(path))} epochs"),
        ("layers.csv", lambda path: f"{len(read_layers(path))} epochs"),
    ):
        if (folder / name).exists():
            yield _text(folder / name, look)


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


def _mapping(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise InvalidInputError("it holds no values by name")
    return content


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


# -- kernels -----------------------------------------------------------------------------------


def _kernel(folder: Path) -> Iterator[Finding]:
    path = folder / MANIFEST
    try:
        manifest = _mapping(path)
        count, block = int(manifest["images"]["shape"][0]), int(manifest["block"])
        sizes = [min(block, count - start) for start in range(0, count, block)]
        dtype = np.dtype(manifest["dtype"])
    except Exception as error:
        yield Finding(path, "damaged", _line(error, path))
        return
    shapes = {
        folder / block_name(row, column): (sizes[row], sizes[column])
        for column in range(len(sizes))
        for row in range(column + 1)
    }
    there = [each for each in shapes if each.exists()]
    yield Finding(path, "readable", f"{len(there)} of {len(shapes)} blocks are computed")
    for each in there:
        yield _file(each, lambda file: check_block(file, shapes[file], dtype))

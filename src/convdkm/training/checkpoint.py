"""Checkpoints: one safetensors file each, with its description as JSON in the header.

A checkpoint holds tensors under dotted names (``model.``, ``optimiser.``, ``whitening.``) and a
description of plain values. There is no pickle in it, so that reading one cannot run code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from convdkm.errors import ConvDKMError
from convdkm.files import parse_json, plain_path, replacing

FORMAT = 1
"""Version of the layout; raised whenever an older program could not read it."""

Which = Literal["last", "previous", "best"]


class CheckpointError(ConvDKMError, RuntimeError):
    """A checkpoint that cannot be read."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Tensors by name, and a description of plain values."""

    tensors: dict[str, Tensor]
    description: dict[str, Any]

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors below ``name.``, without that prefix."""
        prefix = f"{name}."
        return {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write atomically: a reader sees the old file or the new one, whole."""
    header = json.dumps({"format": FORMAT, **checkpoint.description})
    # Copies, because safetensors refuses tensors that share memory.
    tensors = {
        name: value.detach().to("cpu", copy=True).contiguous()
        for name, value in checkpoint.tensors.items()
    }
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={"convdkm": header})


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and check a checkpoint; raises :class:`CheckpointError` that says what is wrong."""
    if not path.is_file():
        raise CheckpointError(
            f"there is no checkpoint {path}; a run that ended before its first one is begun by"
            " convdkm resume"
        )
    try:
        with plain_path(path) as plain, safe_open(plain, framework="pt") as file:
            metadata = file.metadata() or {}
            if "convdkm" not in metadata:
                raise CheckpointError(f"{path} is a safetensors file, but not one of convdkm")
            description = parse_json(metadata["convdkm"])
            _check_format(path, description.get("format"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        size = path.stat().st_size
        raise CheckpointError(f"{path} ({size} bytes) is damaged or cut short: {error}") from None
    return Checkpoint(tensors, description)


def _check_format(path: Path, version: object) -> None:
    if not isinstance(version, int) or version < 1:
        raise CheckpointError(f"{path} does not say which version of the format it has")
    if version > FORMAT:
        raise CheckpointError(
            f"{path} has format {version}, and this version of convdkm reads up to {FORMAT};"
            " upgrade convdkm to read it"
        )


class CheckpointStore:
    """The checkpoints of a run: ``last``, the one ``previous`` to it, and the ``best``."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, which: Which) -> Path:
        return self.folder / f"{which}.safetensors"

    def names(self) -> list[Which]:
        """The checkpoints that are there, the newest first; whether they are whole is not known."""
        return [which for which in get_args(Which) if self.path(which).is_file()]

    def readable(self) -> bool:
        """Whether one of them can be read."""
        for which in self.names():
            with suppress(CheckpointError):
                read_checkpoint(self.path(which))
                return True
        return False

    def save(self, checkpoint: Checkpoint, *, as_best: bool = False) -> None:
        """Write ``best``; or else ``last``, keeping the one before it."""
        if as_best:
            write_checkpoint(self.path("best"), checkpoint)
            return
        last, previous = self.path("last"), self.path("previous")
        if last.exists():
            # A second name for the file: at no moment is there no last checkpoint.
            link = previous.with_suffix(".link")
            link.unlink(missing_ok=True)
            try:
                os.link(last, link)
                os.replace(link, previous)
            except OSError:  # a file system without hard links
                link.unlink(missing_ok=True)
                os.replace(last, previous)
        write_checkpoint(last, checkpoint)

    def load(self, which: Which = "last") -> tuple[Checkpoint, str | None]:
        """A checkpoint, and a warning where it is not the one asked for.

        If ``last`` is damaged or missing, the one before it is read.
        """
        try:
            return read_checkpoint(self.path(which)), None
        except CheckpointError as error:
            if which != "last" or not self.path("previous").is_file():
                raise
            checkpoint = read_checkpoint(self.path("previous"))
            return checkpoint, f"{error}; going back to the checkpoint before it"


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as tensors named ``<parameter>.<entry>``."""
    state = optimiser.state_dict()["state"]
    return {
        f"{index}.{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for index, entries in state.items()
        for key, value in entries.items()
    }


def load_optimiser_tensors(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put a state written by :func:`optimiser_tensors` back."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    groups = optimiser.state_dict()["param_groups"]
    count = sum(len(group["params"]) for group in groups)
    if state and (len(state) > count or max(state) >= count):
        raise CheckpointError(
            f"the checkpoint's optimiser holds {len(state)} parameters, the model has {count}"
        )
    optimiser.load_state_dict({"state": state, "param_groups": groups})

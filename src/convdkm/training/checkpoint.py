"""Checkpoints: one file each, of tensors and a description.

A checkpoint holds tensors under dotted names (``model.``, ``optimiser.``, ``whitening.``) and a
description of plain values. There is no pickle in it, so that reading one cannot run code.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import torch
from torch import Tensor

from convdkm.checks import wrong_kinds
from convdkm.errors import ConvDKMError
from convdkm.storage.files import writing
from convdkm.storage.tensor_file import TensorFormat, key_of

Which = Literal["last", "previous", "best"]


HALVES = (torch.float16, torch.bfloat16)
"""What a file may store and nothing works on: read as float32."""


class CheckpointError(ConvDKMError, RuntimeError):
    """A checkpoint that cannot be read."""


FILES = TensorFormat(
    "convdkm",
    1,
    CheckpointError,
    "checkpoints are in the folder `checkpoints` of a run, and Run.save writes one",
)


@dataclass
class Progress:
    """How far training has come: all that a checkpoint needs besides tensors.

    Attributes:
        step: steps done.
        seconds: time spent so far, over all parts of the run.
        cpu_seconds: the same in time of processors, over all processes and their threads.
        caution: what the learning rate is multiplied by after failed steps; 1 normally.
        sums: of the epoch under way, weighted by images.
        ending: of an epoch whose steps are done, and which has not been evaluated and noted yet:
            values of its last step, and the divergences and gradients of layers in it.
        best: the best score of an epoch so far; higher is better.
        interrupted: whether the user stopped it.
    """

    step: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    caution: float = 1.0
    sums: dict[str, float] = field(default_factory=dict)
    ending: dict[str, dict[str, float]] | None = None
    best: float | None = None
    interrupted: bool = False


KINDS: dict[str, Any] = {
    "progress": dict,
    "class_names": list[str],
    "image_shape": list[int],
    "num_data": int,
    "own_model": bool,
    "config": dict,
    "metrics": dict[str, float],
}
"""What values of a description have to be, where they are there."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Tensors by name, and a description of plain values; ``source`` is its name in messages."""

    tensors: dict[str, Tensor]
    description: dict[str, Any]
    source: str = "the checkpoint"

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors below ``name.``, without that prefix."""
        prefix = f"{name}."
        return {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}

    def value(self, name: str) -> Any:
        """A value of the description, which has to be there."""
        if name not in self.description:
            raise CheckpointError(f"{self.source} is damaged: it has no {name}")
        return self.description[name]

    @property
    def progress(self) -> Progress:
        """How far training had come."""
        with self.fitting():
            return Progress(**self.value("progress"))

    def load_into(self, module: torch.nn.Module, part: str) -> None:
        """Give a module the state that is there under the name ``part``."""
        with self.fitting():
            module.load_state_dict(self.part(part))

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """What goes wrong inside is the checkpoint's fault, or that of changed settings."""
        try:
            yield
        except ConvDKMError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split()) or repr(error)
            raise CheckpointError(
                f"{self.source} is damaged, or does not belong to these settings: {reason}"
            ) from None


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write atomically: a reader sees the old file or the new one."""
    FILES.write(path, checkpoint.tensors, checkpoint.description)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and check a checkpoint; raises :class:`CheckpointError` that says what is wrong."""
    if not path.is_file():
        raise CheckpointError(
            f"there is no checkpoint {path}; a run that ended before its first one is begun by"
            " convdkm resume"
        )
    tensors, description = FILES.read(path)
    wrong = wrong_kinds(description, KINDS) or wrong_kinds(
        description.get("progress", {}), get_type_hints(Progress)
    )
    if wrong:
        raise CheckpointError(f"{path} is damaged: {wrong[0]} in its description is wrong")
    wide = {k: v.float() if v.dtype in HALVES else v for k, v in tensors.items()}
    return Checkpoint(wide, description, str(path))


def is_machine(path: Path) -> bool:
    """Whether a file is a checkpoint, or what ``Run.save`` wrote, by what it says of itself."""
    try:
        return key_of(path) == FILES.key
    except Exception:  # it may be anything
        return False


class CheckpointStore:
    """The checkpoints of a run: ``last``, the one ``previous`` to it, and the ``best``."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._last_is_whole = False

    def path(self, which: Which) -> Path:
        return self.folder / f"{which}.safetensors"

    def names(self) -> list[Which]:
        """The checkpoints that are there, the newest first; whether they are whole is not known."""
        return [which for which in get_args(Which) if self.path(which).is_file()]

    def readable(self) -> bool:
        """Whether one of them can be read."""
        return any(map(self._readable, self.names()))

    def save(self, checkpoint: Checkpoint, *, as_best: bool = False) -> None:
        """Write ``best``; or else ``last``, keeping the one before it."""
        if as_best:
            write_checkpoint(self.path("best"), checkpoint)
            return
        last, previous = self.path("last"), self.path("previous")
        link = previous.with_suffix(".link")
        # A damaged file must not take the place of one that is whole.
        keep = last.is_file() if self._last_is_whole else self._readable("last")
        with writing(last):
            link.unlink(missing_ok=True)
            try:
                if keep:
                    _link_or_copy(last, link)
                write_checkpoint(last, checkpoint)
                if keep:
                    os.replace(link, previous)
            finally:
                link.unlink(missing_ok=True)
        self._last_is_whole = True

    def load(
        self, which: Which = "last", use: Callable[[Checkpoint], Any] = lambda found: found
    ) -> tuple[Any, str | None]:
        """What ``use`` makes of a checkpoint, and a warning where it is not the one asked for.

        If ``last`` is missing, damaged or refused by ``use``, the one before it is read. If that
        cannot be used either, a :class:`CheckpointError` says which others can.
        """
        tried: list[Which] = [which]
        if which == "last" and self.path("previous").is_file():
            tried.append("previous")
        failures: list[str] = []
        for each in tried:
            try:
                found = use(read_checkpoint(self.path(each)))
            except CheckpointError as error:
                failures.append(str(error))
            else:
                warning = "; ".join([*failures, "going back to the checkpoint before it"])
                return found, warning if failures else None
        others = [name for name in self.names() if name not in tried and self._readable(name)]
        if others:
            failures.append(
                f"{' and '.join(others)} can be read: --checkpoint {others[0]} of the commands that"
                " use a run"
            )
        raise CheckpointError("; ".join(failures))

    def _readable(self, which: Which) -> bool:
        try:
            read_checkpoint(self.path(which))
        except CheckpointError:
            return False
        return True


def _link_or_copy(path: Path, link: Path) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    try:
        os.link(path, link)
    except OSError:
        shutil.copyfile(path, link)


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as tensors named ``<parameter>.<entry>``."""
    state = optimiser.state_dict()["state"]
    return {
        f"{index}.{key}": torch.as_tensor(value)
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
    parameters = [each for group in optimiser.param_groups for each in group["params"]]
    if state and (len(state) > len(parameters) or max(state) >= len(parameters)):
        raise CheckpointError(
            f"the checkpoint's optimiser holds {len(state)} parameters, the model has"
            f" {len(parameters)}"
        )
    methods = [group.get("method", "adam") for group in groups for _ in group["params"]]
    averages = {"slow"} if getattr(optimiser, "lookahead", 0) else set()
    kept = {
        "adam": {"step", "exp_avg", "exp_avg_sq"},
        "muon": {"step", "exp_avg"},
        "natural": {"step", "exp_avg", "mean_square"},
        "head": {"step"},
    }
    for place, entries in state.items():
        expected = kept[methods[place]] | averages
        shapes = {value.shape for value in entries.values() if value.ndim}
        if entries.keys() != expected or not shapes <= {parameters[place].shape}:
            raise CheckpointError(
                f"the checkpoint's optimiser does not fit parameter {place} of the model, or is"
                " another one"
            )
    optimiser.load_state_dict({"state": state, "param_groups": groups})

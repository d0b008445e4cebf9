"""Kernel matrices that are computed block by block onto disk, and may be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.kernels.nngp import NNGPKernel, Prepared, Tell
from convdkm.lab.baselines.kernels.progress import Progress
from convdkm.storage import digests
from convdkm.storage.files import read_json, write_json
from convdkm.storage.finding import Finding, checked_file, reason_of, values_of
from convdkm.storage.text import shortened

FORMAT = 1
MANIFEST = "kernel.json"
_HEADER = 128
"""Bytes of a block's file before its numbers."""


class KernelStore:
    """The upper half of the kernel matrix of a set of images, as files of blocks.

    ``kernel.json`` says which architecture, options and images the blocks belong to; a folder that
    belongs to others is refused. A block is written whole or not at all, so that a computation
    that was killed goes on where it stopped. It ends with a digest, which is checked when it is
    first read.

    Args:
        folder: made if it is not there.
        kernel: the kernel.
        images: ``(N, C, H, W)``.
        block: images a side of a block.
        dtype: of the numbers on disk, float32 or float64; that of the kernel if not given.
    """

    def __init__(
        self,
        folder: str | Path,
        kernel: NNGPKernel,
        images: Tensor,
        *,
        block: int = 256,
        dtype: torch.dtype | None = None,
    ) -> None:
        if block < 1:
            raise InvalidInputError(f"block must be a positive number of images, got {block}")
        kernel.check(images)
        self.folder, self.kernel, self.images, self.block = Path(folder), kernel, images, block
        self.dtype = np.dtype(str(dtype or kernel.dtype).removeprefix("torch."))
        if self.dtype.name not in ("float32", "float64"):
            raise InvalidInputError(f"blocks are float32 or float64, got {self.dtype.name}")
        self._checked: set[Path] = set()
        self._claim()

    def __len__(self) -> int:
        return len(self.images)

    def describe(self) -> dict[str, Any]:
        """What the manifest holds."""
        return {
            "format": FORMAT,
            "kernel": self.kernel.describe(),
            "images": {"shape": list(self.images.shape), "sha256": digest(self.images)},
            "block": self.block,
            "dtype": self.dtype.name,
        }

    @staticmethod
    def bytes_needed(count: int, block: int, itemsize: int) -> int:
        """On disk, for a set of ``count`` images."""
        blocks = -(-count // block)
        rest = count - (blocks - 1) * block
        sizes = [block] * (blocks - 1) + [rest]
        total, below = 0, 0
        for size in sizes:
            below += size
            total += below * size
        files = len(sizes) * (len(sizes) + 1) // 2
        return total * itemsize + files * (_HEADER + len(digests.LINE))

    # -- computing -----------------------------------------------------------------------------

    def missing(self) -> list[tuple[int, int]]:
        """Blocks that are not there yet."""
        return [place for place in self._places() if not self._path(*place).exists()]

    def missing_pairs(self) -> int:
        """How many pairs of images these have together."""
        return sum(self._pairs(*place) for place in self.missing())

    def compute(self, *, tell: Tell | None = None, ready: Prepared | None = None) -> KernelStore:
        """Work out what is missing; returns itself.

        Args:
            tell: called with lines that say how far it is.
            ready: the images, where the kernel has prepared them already.
        """
        missing = self.missing()
        if not missing:
            return self
        ready = self.kernel.prepare(self.images) if ready is None else ready
        if tell is not None and len(missing) < len(list(self._places())):
            tell(f"resuming {self.folder}: {len(missing)} blocks are missing")
        progress = Progress(f"kernel {self.kernel.name}", self.missing_pairs(), "pairs", tell)
        for row, column in missing:
            left = ready.part(self._range(row))
            right = None if row == column else ready.part(self._range(column))
            self._write(row, column, self.kernel.block(left, right))
            progress.add(self._pairs(row, column))
        return self

    def _write(self, row: int, column: int, values: Tensor) -> None:
        path = self._path(row, column)
        with digests.sealing(path) as temporary, temporary.open("wb") as file:
            np.save(file, values.numpy().astype(self.dtype))
            file.write(digests.LINE)

    # -- reading -------------------------------------------------------------------------------

    def product(self, vectors: Tensor) -> Tensor:
        """K V in float64: every block is read once, and serves its mirror image too."""
        result = torch.zeros((len(self), vectors.shape[1]), dtype=torch.float64)
        for row, column in self._places():
            values = torch.from_numpy(self._read(row, column).astype(np.float64))
            here, there = self._range(row), self._range(column)
            result[here] += values @ vectors[there]
            if row != column:
                result[there] += values.T @ vectors[here]
        return result

    def row(self, index: int) -> Tensor:
        """One row, ``(N,)`` in float64."""
        block, inside = divmod(index, self.block)
        parts = []
        for other in range(self._count()):
            if other < block:
                parts.append(self._read(other, block, mapped=True)[:, inside])
            else:
                parts.append(self._read(block, other, mapped=True)[inside])
        return torch.from_numpy(np.concatenate(parts).astype(np.float64))

    def diagonal(self) -> Tensor:
        """``(N,)`` in float64."""
        parts = [self._read(i, i, mapped=True).diagonal() for i in range(self._count())]
        return torch.from_numpy(np.concatenate(parts).astype(np.float64))

    def matrix(self) -> Tensor:
        """The whole matrix, ``(N, N)`` in float64."""
        result = torch.empty((len(self), len(self)), dtype=torch.float64)
        for row, column in self._places():
            values = torch.from_numpy(self._read(row, column).astype(np.float64))
            here, there = self._range(row), self._range(column)
            result[here, there] = values
            result[there, here] = values.T
        return result

    def _read(self, row: int, column: int, *, mapped: bool = False) -> np.ndarray:
        path, shape = self._path(row, column), (self._length(row), self._length(column))
        if not path.exists():
            raise InvalidInputError(
                f"the kernel in {self.folder} is not finished: {path.name} is missing; call"
                " compute() first"
            )
        if path not in self._checked:
            check_block(path, shape, self.dtype)
            self._checked.add(path)
        return _loaded(path, shape, self.dtype, mapped=mapped)

    # -- the folder ----------------------------------------------------------------------------

    def _claim(self) -> None:
        """Take an empty folder, or one with the same manifest."""
        path, own = self.folder / MANIFEST, self.describe()
        if not path.exists():
            if self.folder.exists() and any(self.folder.iterdir()):
                raise InvalidInputError(
                    f"{self.folder} holds files but no {MANIFEST}, so that blocks in it may belong"
                    " to another kernel; name an empty or a new folder"
                )
            write_json(path, own)
            return
        try:
            found = read_json(path)
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"{path} is damaged ({error}); delete the folder to compute its kernel again"
            ) from None
        if not isinstance(found, dict):
            raise InvalidInputError(
                f"{path} is damaged (it is no JSON object); delete the folder to compute its kernel"
                " again"
            )
        different = [key for key in own if found.get(key) != own[key]]
        if different:
            key = different[0]
            raise InvalidInputError(
                f"{self.folder} belongs to another kernel: {key} is {_brief(found.get(key))} there"
                f" and {_brief(own[key])} here; name another folder"
            )

    def _path(self, row: int, column: int) -> Path:
        return self.folder / block_name(row, column)

    def _count(self) -> int:
        return -(-len(self) // self.block)

    def _places(self) -> Iterator[tuple[int, int]]:
        return ((row, column) for column in range(self._count()) for row in range(column + 1))

    def _range(self, index: int) -> slice:
        return slice(index * self.block, min((index + 1) * self.block, len(self)))

    def _length(self, index: int) -> int:
        part = self._range(index)
        return part.stop - part.start

    def _pairs(self, row: int, column: int) -> int:
        count = self._length(row)
        return count * (count + 1) // 2 if row == column else count * self._length(column)


def block_name(row: int, column: int) -> str:
    """Of the file of a block."""
    return f"block-{row:05d}-{column:05d}.npy"


def check_block(path: Path, shape: tuple[int, int], dtype: np.dtype) -> bool:
    """Whether the file of a block has a digest; raises if what it holds is not right."""
    try:
        has_digest = digests.check_digest(path)
    except digests.DamagedError as error:
        raise InvalidInputError(_damaged(path, str(error))) from None
    values = _loaded(path, shape, dtype, mapped=True)
    if not has_digest and path.stat().st_size != _HEADER + values.nbytes:
        raise InvalidInputError(_damaged(path, "its end is not that of a block"))
    return has_digest


def _loaded(path: Path, shape: tuple[int, int], dtype: np.dtype, *, mapped: bool) -> np.ndarray:
    try:
        values: np.ndarray = np.load(path, mmap_mode="r" if mapped else None)
    except Exception as error:  # damage to the header takes many forms
        raise InvalidInputError(_damaged(path, str(error) or repr(error))) from None
    if values.shape != shape or values.dtype != dtype:
        found = f"it holds {values.shape} of {values.dtype}, not {shape} of {dtype}"
        raise InvalidInputError(_damaged(path, found))
    return values


def digest(images: Tensor) -> str:
    """SHA-256 of the numbers of a tensor, as float64."""
    found = hashlib.sha256()
    for part in images.detach().split(1024):
        found.update(part.to("cpu", torch.float64).contiguous().numpy().tobytes())
    return found.hexdigest()


def _damaged(path: Path, why: str) -> str:
    return f"{path} is damaged ({why}); delete it, and compute() will make it again"


def _brief(value: object) -> str:
    return shortened(json.dumps(value, sort_keys=True))


def verify_kernel(folder: Path) -> Iterator[Finding]:
    """Check every block in the folder of a kernel."""
    path = folder / MANIFEST
    try:
        manifest = values_of(path)
        count, block = int(manifest["images"]["shape"][0]), int(manifest["block"])
        sizes = [min(block, count - start) for start in range(0, count, block)]
        dtype = np.dtype(manifest["dtype"])
    except Exception as error:
        yield Finding(path, "damaged", reason_of(error, path))
        return
    shapes = {
        folder / block_name(row, column): (sizes[row], sizes[column])
        for column in range(len(sizes))
        for row in range(column + 1)
    }
    there = [each for each in shapes if each.exists()]
    yield Finding(path, "readable", f"{len(there)} of {len(shapes)} blocks are computed")
    for each in there:
        yield checked_file(each, lambda file: check_block(file, shapes[file], dtype))

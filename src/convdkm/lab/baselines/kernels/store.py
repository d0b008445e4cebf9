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
from convdkm.lab.baselines.base import Tell
from convdkm.lab.baselines.kernels.nngp import NNGPKernel
from convdkm.lab.baselines.kernels.progress import Progress
from convdkm.lab.baselines.kernels.tiles import Prepared, pairs_within, steps
from convdkm.storage import digests
from convdkm.storage.files import read_mapping, write_json
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
        self._blocks = _blocks(len(images), block)
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
        """The bytes on disk of the kernel of ``count`` images."""
        shapes = map(_shape, _blocks(count, block).values())
        overhead = _HEADER + len(digests.LINE)
        return sum(rows * columns * itemsize + overhead for rows, columns in shapes)

    # -- computing -----------------------------------------------------------------------------

    def missing(self) -> list[tuple[int, int]]:
        """Blocks that are not there yet, by row and column."""
        return [place for place in self._blocks if not self._path(*place).exists()]

    def missing_pairs(self) -> int:
        """How many pairs of images these have together."""
        return sum(pairs_within(*self._blocks[place]) for place in self.missing())

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
        if tell is not None and len(missing) < len(self._blocks):
            tell(f"resuming {self.folder}: {len(missing)} blocks are missing")
        progress = Progress(f"kernel {self.kernel.name}", self.missing_pairs(), "pairs", tell)
        for place in missing:
            rows, columns = self._blocks[place]
            right = None if rows == columns else ready.part(columns)
            self._write(self._path(*place), self.kernel.block(ready.part(rows), right))
            progress.add(pairs_within(rows, columns))
        return self

    def _write(self, path: Path, values: Tensor) -> None:
        with digests.sealing(path) as temporary, temporary.open("wb") as file:
            np.save(file, values.numpy().astype(self.dtype))
            file.write(digests.LINE)

    # -- reading -------------------------------------------------------------------------------

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """K V in float64: every block is read once, and serves its mirror image too."""
        result = torch.zeros((len(self), vectors.shape[1]), dtype=torch.float64)
        for rows, columns, values in self._all():
            result[rows] += values @ vectors[columns]
            if rows != columns:
                result[columns] += values.T @ vectors[rows]
        return result

    def __getitem__(self, index: int) -> Tensor:
        """One row, ``(N,)`` in float64."""
        block, inside = divmod(index, self.block)
        count = -(-len(self) // self.block)
        parts = [self._read(row, block, mapped=True)[:, inside] for row in range(block)]
        parts += [self._read(block, column, mapped=True)[inside] for column in range(block, count)]
        return torch.from_numpy(np.concatenate(parts).astype(np.float64))

    def diagonal(self) -> Tensor:
        """``(N,)`` in float64."""
        squares = [place for place in self._blocks if place[0] == place[1]]
        parts = [self._read(*place, mapped=True).diagonal() for place in squares]
        return torch.from_numpy(np.concatenate(parts).astype(np.float64))

    def matrix(self) -> Tensor:
        """The whole matrix, ``(N, N)`` in float64."""
        result = torch.empty((len(self), len(self)), dtype=torch.float64)
        for rows, columns, values in self._all():
            result[rows, columns] = values
            result[columns, rows] = values.T
        return result

    def _all(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Every block in float64, with its rows and columns of the matrix."""
        for place, (rows, columns) in self._blocks.items():
            yield rows, columns, torch.from_numpy(self._read(*place).astype(np.float64))

    def _read(self, row: int, column: int, *, mapped: bool = False) -> np.ndarray:
        path, shape = self._path(row, column), _shape(self._blocks[row, column])
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
        path, expected = self.folder / MANIFEST, self.describe()
        if not path.exists():
            if self.folder.exists() and any(self.folder.iterdir()):
                raise InvalidInputError(
                    f"{self.folder} holds files but no {MANIFEST}, so that blocks in it may belong"
                    " to another kernel; name an empty or a new folder"
                )
            write_json(path, expected)
            return
        found = read_mapping(path)
        if found is None:
            raise InvalidInputError(
                f"{path} is damaged (it holds no JSON object); delete the folder to compute its"
                " kernel again"
            )
        different = [key for key in expected if found.get(key) != expected[key]]
        if different:
            key = different[0]
            raise InvalidInputError(
                f"{self.folder} belongs to another kernel: {key} is {_brief(found.get(key))} there"
                f" and {_brief(expected[key])} here; name another folder"
            )

    def _path(self, row: int, column: int) -> Path:
        return self.folder / _file_name(row, column)


def _blocks(count: int, block: int) -> dict[tuple[int, int], tuple[slice, slice]]:
    """The rows and columns of the matrix that each block holds, by its own row and column."""
    parts = list(steps(count, block))
    return {
        (row, column): (parts[row], parts[column])
        for column in range(len(parts))
        for row in range(column + 1)
    }


def _shape(part: tuple[slice, slice]) -> tuple[int, int]:
    rows, columns = part
    return rows.stop - rows.start, columns.stop - columns.start


def _file_name(row: int, column: int) -> str:
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
        blocks = _blocks(int(manifest["images"]["shape"][0]), int(manifest["block"]))
        dtype = np.dtype(manifest["dtype"])
    except Exception as error:
        yield Finding(path, "damaged", reason_of(error, path))
        return
    shapes = {folder / _file_name(*place): _shape(part) for place, part in blocks.items()}
    there = [each for each in shapes if each.exists()]
    yield Finding(path, "readable", f"{len(there)} of {len(shapes)} blocks are computed")
    for each in there:
        yield checked_file(each, lambda file: check_block(file, shapes[file], dtype))

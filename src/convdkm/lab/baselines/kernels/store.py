"""Kernel matrices that are computed block by block onto disk, and may be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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

MANIFEST = "kernel.json"
HEADER = 128
"""Bytes of a block's file before its values."""


class Block(NamedTuple):
    """A part of the matrix, and the file that holds it."""

    path: Path
    rows: slice
    columns: slice
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    def write(self, values: Tensor) -> None:
        """Write the file, whole or not at all, with a digest at its end."""
        with digests.sealing(self.path) as temporary, temporary.open("wb") as file:
            np.save(file, values.numpy().astype(self.dtype))
            file.write(digests.LINE)

    def read(self, *, mapped: bool = True) -> np.ndarray:
        """The values; an error unless they are of the right shape and type."""
        try:
            values: np.ndarray = np.load(self.path, mmap_mode="r" if mapped else None)
        except Exception as error:  # damage to the header takes many forms
            raise self._damaged(str(error) or repr(error)) from None
        if values.shape != self.shape or values.dtype != self.dtype:
            raise self._damaged(
                f"it holds {values.shape} of {values.dtype}, not {self.shape} of {self.dtype}"
            )
        return values

    def check(self) -> None:
        """Raise unless the file matches its digest; without a digest, unless its size is right."""
        try:
            has_digest = digests.check_digest(self.path)
        except digests.DamagedError as error:
            raise self._damaged(str(error)) from None
        if self.path.stat().st_size != HEADER + self.read().nbytes and not has_digest:
            raise self._damaged("its end is not that of a block")

    def _damaged(self, why: str) -> InvalidInputError:
        return InvalidInputError(
            f"{self.path} is damaged ({why}); delete it, and compute() will make it again"
        )


def blocks_of(folder: Path, count: int, side: int, dtype: np.dtype) -> dict[tuple[int, int], Block]:
    """The blocks of the kernel of ``count`` images, ``side`` of them a side, by row and column."""
    parts = list(steps(count, side))
    return {
        (row, column): Block(
            folder / f"block-{row:05d}-{column:05d}.npy", parts[row], parts[column], dtype
        )
        for column in range(len(parts))
        for row in range(column + 1)
    }


class KernelStore:
    """The upper half of the kernel matrix of a set of images, as files of blocks.

    ``kernel.json`` says which architecture, options and images the blocks belong to; a folder that
    belongs to others is refused. A block is written whole or not at all, so that a computation
    that was killed goes on where it stopped. It ends with a digest, which is checked when it is
    first read.

    Args:
        folder: made if it is not there.
        kernel: the kernel, whose precision is also that of the blocks.
        images: ``(N, C, H, W)``.
        block: images a side of a block.
    """

    def __init__(
        self, folder: str | Path, kernel: NNGPKernel, images: Tensor, *, block: int = 256
    ) -> None:
        if block < 1:
            raise InvalidInputError(f"block must be a positive number of images, got {block}")
        kernel.check(images)
        self.folder, self.kernel, self.images, self.block = Path(folder), kernel, images, block
        dtype = str(kernel.dtype).removeprefix("torch.")
        self._blocks = blocks_of(self.folder, len(images), block, np.dtype(dtype))
        self._checked: set[Path] = set()
        manifest = {
            "format": 1,
            "kernel": kernel.describe(),
            "images": {"shape": list(images.shape), "sha256": digest(images)},
            "block": block,
            "dtype": dtype,
        }
        _claim(self.folder, manifest)

    def __len__(self) -> int:
        return len(self.images)

    @staticmethod
    def bytes_needed(count: int, block: int, itemsize: int) -> int:
        """The bytes on disk of the kernel of ``count`` images."""
        blocks = blocks_of(Path(), count, block, np.dtype(f"f{itemsize}")).values()
        values = sum(rows * columns for rows, columns in (each.shape for each in blocks))
        return values * itemsize + len(blocks) * (HEADER + len(digests.LINE))

    # -- computing -----------------------------------------------------------------------------

    def missing(self) -> list[Block]:
        """Blocks that are not there yet."""
        return [block for block in self._blocks.values() if not block.path.exists()]

    def missing_pairs(self) -> int:
        """How many pairs of images these have together."""
        return sum(pairs_within(block.rows, block.columns) for block in self.missing())

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
        progress = Progress(f"kernel {self.kernel.name}", self.missing_pairs(), tell)
        for block in missing:
            right = None if block.rows == block.columns else ready.part(block.columns)
            block.write(self.kernel.block(ready.part(block.rows), right))
            progress.add(pairs_within(block.rows, block.columns))
        return self

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
        parts = [self._read(self._blocks[row, block])[:, inside] for row in range(block)]
        parts += [self._read(self._blocks[block, column])[inside] for column in range(block, count)]
        return torch.from_numpy(np.concatenate(parts).astype(np.float64))

    def diagonal(self) -> Tensor:
        """``(N,)`` in float64."""
        squares = [block for block in self._blocks.values() if block.rows == block.columns]
        parts = [self._read(block).diagonal() for block in squares]
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
        for block in self._blocks.values():
            values = self._read(block, mapped=False).astype(np.float64)
            yield block.rows, block.columns, torch.from_numpy(values)

    def _read(self, block: Block, *, mapped: bool = True) -> np.ndarray:
        if not block.path.exists():
            raise InvalidInputError(
                f"the kernel in {self.folder} is not finished: {block.path.name} is missing; call"
                " compute() first"
            )
        if block.path not in self._checked:
            block.check()
            self._checked.add(block.path)
        return block.read(mapped=mapped)


def _claim(folder: Path, manifest: dict[str, object]) -> None:
    """Take an empty folder, or one with the same manifest."""
    path = folder / MANIFEST
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise InvalidInputError(
                f"{folder} holds files but no {MANIFEST}, so that blocks in it may belong to"
                " another kernel; name an empty or a new folder"
            )
        write_json(path, manifest)
        return
    found = read_mapping(path)
    if found is None:
        raise InvalidInputError(
            f"{path} is damaged (it holds no JSON object); delete the folder to compute its kernel"
            " again"
        )
    for key, value in manifest.items():
        if found.get(key) != value:
            there, here = (
                shortened(json.dumps(each, sort_keys=True)) for each in (found.get(key), value)
            )
            raise InvalidInputError(
                f"{folder} belongs to another kernel: {key} is {there} there and {here} here; name"
                " another folder"
            )


def digest(images: Tensor) -> str:
    """SHA-256 of the values of a tensor, as float64."""
    found = hashlib.sha256()
    for part in images.detach().split(1024):
        found.update(part.to("cpu", torch.float64).contiguous().numpy().tobytes())
    return found.hexdigest()


def verify_kernel(folder: Path) -> Iterator[Finding]:
    """Check every block in the folder of a kernel."""
    path = folder / MANIFEST
    try:
        manifest = values_of(path)
        count, side = int(manifest["images"]["shape"][0]), int(manifest["block"])
        blocks = blocks_of(folder, count, side, np.dtype(manifest["dtype"]))
        by_path = {block.path: block for block in blocks.values()}
    except Exception as error:
        yield Finding(path, "damaged", reason_of(error, path))
        return
    there = [each for each in by_path if each.exists()]
    yield Finding(path, "readable", f"{len(there)} of {len(by_path)} blocks are computed")
    for each in there:
        yield checked_file(each, lambda file: by_path[file].check())

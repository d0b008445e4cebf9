r"""Maps ``(N, P, *space)`` of the data path: how they lie in memory and how they are worked on.

A map holds :math:`G_{it}`: P numbers for every pixel. It is stored *channels last*, the P numbers
of a pixel side by side, so that a product with a matrix over the inducing axis is one matrix
product over *rows* (pixels), and a sum over it runs along memory.

Elementwise work goes through a map in pieces that stay in the processor's cache: a dozen passes
over a piece cost little more than one pass over the whole map from main memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn import functional as F

PIECE = 1 << 18
"""Numbers in a piece of a map that is worked on at a time, on a CPU."""

_MOST: ContextVar[int] = ContextVar("most", default=sys.maxsize)

BLOCK = 1 << 13
"""Rows that :func:`summed_products` takes at a time."""


def channels_last(maps: Tensor) -> Tensor:
    """The same map with the P numbers of a pixel side by side in memory."""
    return maps.movedim(1, -1).contiguous().movedim(-1, 1)


def as_rows(maps: Tensor) -> Tensor:
    """``(N, P, *space)`` as ``(pixels, P)``; a view of a map stored channels last."""
    return maps.movedim(1, -1).reshape(-1, maps.shape[1])


def from_rows(rows: Tensor, count: int, space: torch.Size | tuple[int, ...]) -> Tensor:
    """The map ``(count, P, *space)`` that has these rows."""
    return rows.reshape(count, *space, rows.shape[1]).movedim(-1, 1)


def pieces(rows: Tensor, size: int | None = None) -> Iterator[slice]:
    """Slices of the rows of a map, each a piece of ``size`` numbers to be worked on at a time."""
    count, width = rows.shape
    most = min(PIECE if size is None else size, _MOST.get())
    step = max(1, most // width if rows.device.type == "cpu" else count)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


@contextmanager
def smaller_pieces(size: int) -> Iterator[None]:
    """A block in which pieces have at most ``size`` numbers.

    What a piece takes of memory is then as small beside few images as it is beside many.
    """
    token = _MOST.set(size)
    try:
        yield
    finally:
        _MOST.reset(token)


def product_dtype(maps: Tensor) -> torch.dtype:
    """Precision of products with a map: its own, or that of ``torch.autocast``."""
    kind = maps.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return maps.dtype


def without_autocast(maps: Tensor) -> AbstractContextManager[object]:
    """A block in which ``torch.autocast`` leaves operands as they are."""
    kind = maps.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def product(rows: Tensor, matrix: Tensor, offset: Tensor | None = None) -> Tensor:
    """``rows · matrixᵀ + offset``, in the precision of :func:`product_dtype`."""
    dtype = product_dtype(rows)
    if dtype == rows.dtype:
        return F.linear(rows, matrix, offset)
    with without_autocast(rows):
        offset = None if offset is None else offset.to(dtype)
        return F.linear(rows.to(dtype), matrix.to(dtype), offset).to(rows.dtype)


def mean_squares(maps: Tensor) -> Tensor:
    """The mean square of the numbers of each pixel, ``(N, *space)``."""
    squares = maps.square()
    last = squares.movedim(1, -1)
    if not last.is_contiguous():
        return squares.mean(1)
    # A sum over few numbers side by side is slow where it is not a product.
    with without_autocast(maps):
        return last @ maps.new_full((maps.shape[1],), 1 / maps.shape[1])


def summed_products(left: Tensor, right: Tensor) -> Tensor:
    """``leftᵀ · right`` for rows ``(rows, P)`` and ``(rows, Q)``: a sum over all pixels.

    Added up in blocks of rows, which takes less time than one product that is so much longer than
    it is wide.
    """
    count = left.shape[0]
    if left.device.type != "cpu" or count <= BLOCK or count % BLOCK:
        return left.T @ right
    blocks = (tensor.reshape(-1, BLOCK, tensor.shape[1]) for tensor in (left, right))
    first, second = blocks
    return torch.bmm(first.mT, second).sum(0)

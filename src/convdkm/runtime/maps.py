r"""Maps ``(N, P, *space)`` of the data path: how they lie in memory and how they are worked on.

A map holds :math:`G_{it}`: P numbers for every pixel. It is stored *channels last*, the P numbers
of a pixel side by side, so that a product with a matrix over the inducing axis is one matrix
product over *rows* (pixels), and a sum over it runs along memory.

Elementwise work goes through a map in pieces that stay in the processor's cache: a dozen passes
over a piece cost little more than one pass over the whole map from main memory.
"""

from __future__ import annotations

import math
import platform
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
"""Rows that :func:`summed_products` takes at a time, where it is a product of matrices."""

RUN, SHORT_RUN, FEWEST_RUNS = 128, 16, 16
"""Rows that a convolution has as one image, and how many images are worth one.

Sums over the rows of narrow maps, as gradients of weights, are faster in short runs.
"""

NARROW = 64
"""Numbers in a row of a map that counts as narrow."""

_HAS_ONEDNN = torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64")


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


def _images(rows: Tensor, most: int = RUN) -> Tensor | None:
    """Rows ``(rows, P)`` as images ``(rows/R, P, 1, R)``, if products are better convolutions.

    Convolutions of one place come from oneDNN, which uses the widest instructions that the
    processor has. The BLAS of PyTorch's builds, which products of matrices come from, does not on
    processors of another maker, and takes twice the time there. An exported program is for any
    number of rows, and has products.
    """
    suits = _HAS_ONEDNN and rows.device.type == "cpu" and rows.dtype == torch.float32
    if not suits or torch.compiler.is_compiling():
        return None
    run = math.gcd(len(rows), most)
    if run < SHORT_RUN or len(rows) < FEWEST_RUNS * RUN:
        return None
    return from_rows(rows, len(rows) // run, (1, run))


def _linear(rows: Tensor, matrix: Tensor, offset: Tensor | None) -> Tensor:
    images = _images(rows)
    if images is None:
        return F.linear(rows, matrix, offset)
    return as_rows(F.conv2d(images, matrix[:, :, None, None], offset))


def product(rows: Tensor, matrix: Tensor, offset: Tensor | None = None) -> Tensor:
    """``rows · matrixᵀ + offset``, in the precision of :func:`product_dtype`."""
    dtype = product_dtype(rows)
    offset = None if offset is None else offset.to(dtype)
    with without_autocast(rows):
        return _linear(rows.to(dtype), matrix.to(dtype), offset)


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

    It is what the weights of a convolution of one place have for a gradient. As a product of
    matrices it is added up in blocks of rows, which takes less time than one product that is so
    much longer than it is wide.
    """
    dtype = product_dtype(right)
    if dtype == torch.bfloat16:
        with without_autocast(left):
            return left.to(dtype).T @ right.to(dtype)
    count = left.shape[0]
    run = SHORT_RUN if max(left.shape[1], right.shape[1]) <= NARROW else RUN
    grad, images = _images(left, run), _images(right, run)
    if grad is not None and images is not None:
        weight = left.new_empty(left.shape[1], right.shape[1], 1, 1)
        geometry = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
        _, result, _ = torch.ops.aten.convolution_backward(
            grad, images, weight, None, *geometry, (False, True, False)
        )
        return result.flatten(1)
    if left.device.type != "cpu" or count <= BLOCK or count % BLOCK:
        return left.T @ right
    blocks = (tensor.reshape(-1, BLOCK, tensor.shape[1]) for tensor in (left, right))
    first, second = blocks
    return torch.bmm(first.mT, second).sum(0)

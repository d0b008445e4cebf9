r"""A nonlinearity and the convolution below it as one pass over slabs, by ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from convdkm.exact import Convolution
from convdkm.kernels import Kernel
from convdkm.kernels.blocks import Side
from convdkm.lab.baselines.kernels.layers import same, side_of
from convdkm.runtime.compiled import apart, attempted

OfRows = Callable[[Sequence[Tensor], Side, Side], Tensor]
"""A function of the slabs ``(W, H', W', B)`` of as many neighbouring rows as the filter is high,
of the variances of the left places of the middle one ``(W, 1, 1, 1)`` and of those of the right
places ``(H', W', B)``; it returns a new slab."""

SHAPES = 32
"""The most shapes that a function is compiled for; a Myrtle network has three."""

MADE: dict[tuple[str, torch.dtype], OfRows | None] = {}
"""Functions by the description of their layers: an equal architecture needs no compiler again."""


def compiled(conv: Convolution | None, kernel: Kernel, dtype: torch.dtype) -> OfRows | None:
    """A convolution, if there is one, and the nonlinearity after it as a function of rows.

    None, and a warning in the log, where nothing compiles.
    """

    def of_rows(rows: Sequence[Tensor], left: Side, right: Side) -> Tensor:
        slab = rows[0] if conv is None else convolved(rows, conv)
        return kernel.scaled(kernel.core(slab, left, right))

    def make() -> OfRows:
        made: OfRows = torch.compile(of_rows, dynamic=False, **apart(SHAPES))
        slab = torch.zeros((3, 3, 3, 8), dtype=dtype)
        rows = [slab] * (1 if conv is None else side_of(conv))
        with torch.no_grad():
            made(rows, Side.of(slab[:, :1, :1, :1]), Side.of(slab[0]))
        return made

    key = same(conv, kernel), dtype
    if key not in MADE:
        MADE[key] = attempted(make)
    return MADE[key]


def convolved(rows: Sequence[Tensor], conv: Convolution) -> Tensor:
    """The middle row of a convolution, as a sum of shifted slabs with zeros around them."""
    width, height, other, _ = rows[0].shape
    total = torch.zeros_like(rows[0])
    for down, slab in enumerate(rows):
        around = F.pad(slab, (0, 0, *(len(rows) // 2,) * 6))
        rows_of = around[:, down : down + height]
        for along in range(len(rows)):
            total = total + rows_of[along : along + width, :, along : along + other]
    return total * (conv.weight_variance / len(rows) ** 2) + conv.bias_variance

r"""A nonlinearity and the convolution below it as one pass over slabs, by ``torch.compile``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from convdkm.lab.baselines.kernels.arccosine import relu_of_cosines
from convdkm.lab.baselines.kernels.layers import Conv, Nonlinearity, Relu
from convdkm.runtime.compiled import attempted
from convdkm.runtime.for_rows import apart

OfRows = Callable[[Sequence[Tensor], Tensor, Tensor, Tensor, Tensor], Tensor]
r"""Of the slabs of neighbouring rows ``(W, H', W', B)``, as many as the filter is high, with
:math:`1/\sqrt a` and :math:`\sqrt a` of the left places of the middle one ``(W, 1, 1, 1)``,
:math:`1/\sqrt b` and :math:`\sqrt b` of the right places ``(H', W', B)``: a new slab."""

SHAPES = 32
"""Each is compiled for itself; a Myrtle network has three."""


@functools.cache
def compiled(conv: Conv | None, layer: Nonlinearity, dtype: torch.dtype) -> OfRows | None:
    """What a convolution, if there is one, and a nonlinearity after it do to a row.

    None, and a warning in the log, where nothing compiles.
    """
    of_cosines = _of_relu(layer) if isinstance(layer, Relu) else _of_gaussian(layer.gamma)

    def of_rows(
        rows: Sequence[Tensor],
        left_inverse: Tensor,
        left: Tensor,
        right_inverse: Tensor,
        right: Tensor,
    ) -> Tensor:
        slab = rows[0] if conv is None else convolved(rows, conv)
        return of_cosines(slab * left_inverse * right_inverse) * (left * right)

    def make() -> OfRows:
        made: OfRows = torch.compile(of_rows, dynamic=False, **apart(SHAPES))
        slab = torch.zeros((3, 3, 3, 8), dtype=dtype)
        rows = [slab] * (1 if conv is None else conv.size)
        with torch.no_grad():
            made(rows, slab[:, :1, :1, :1], slab[:, :1, :1, :1], slab[0], slab[0])
        return made

    return attempted(make)


def convolved(rows: Sequence[Tensor], conv: Conv) -> Tensor:
    """The middle row of a convolution, as a sum of shifted slabs with zeros around them."""
    radius = conv.size // 2
    width, height, other, _ = rows[0].shape
    total = torch.zeros_like(rows[0])
    for down, slab in enumerate(rows):
        around = F.pad(slab, (0, 0, *(radius,) * 6))
        for along in range(conv.size):
            total = (
                total + around[along : along + width, down : down + height, along : along + other]
            )
    return total * (conv.weight_variance / conv.size**2) + conv.bias_variance


def _of_relu(layer: Relu) -> Callable[[Tensor], Tensor]:
    return lambda cosines: relu_of_cosines(cosines) * (layer.gain / 2)


def _of_gaussian(gamma: float) -> Callable[[Tensor], Tensor]:
    return lambda cosines: ((cosines - 1).clamp(max=0) * gamma).exp()

r"""The elementwise functions of folded machines: constant parameters, no derivatives.

With the cosine :math:`x = c/h`, :math:`h = \sqrt{ab}`, the arc-cosine kernel of order 1 is

.. math::
    k_1 = h\left(\max(x, 0) + u^{3/2} r(u)\right), \qquad u = 1 - |x|, \qquad
    \pi u^{3/2} r(u) = \sqrt{u(2-u)} - 2(1-u)\arcsin\sqrt{u/2},

with a function r that is smooth where it is needed: its nearest singularity is at u = 2, so that
a short polynomial takes the place of the angle, as precise as the numbers themselves. The slope in
x is finite, so that the rounding of x does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from convdkm.elementwise.compiled import compiled_engine, compiled_for_rows
from convdkm.maps import pieces

_SINGLE = (
    0.00016558550229587562,
    -1.0112491988163717e-05,
    0.0006537140814849389,
    0.0023878848222679814,
    0.01500735753322431,
    0.3001054096005962,
)
"""r, highest power first; the error of u^(3/2) r(u) is below 5e-8."""

_DOUBLE = (
    1.649376186704804e-07,
    -1.0320320210270318e-06,
    3.122797236559908e-06,
    -5.7194460595988465e-06,
    7.229972599882493e-06,
    -6.260420548328054e-06,
    4.471610999228698e-06,
    -1.1711648904343405e-06,
    2.840347225937841e-06,
    5.597039148010689e-06,
    1.6307253182092548e-05,
    4.841407302919641e-05,
    0.00015541717475577531,
    0.0005582318249220994,
    0.002411561561610428,
    0.015005271935946796,
    0.3001054387190354,
)
"""The same for float64; the error is below 2e-17. Both by interpolation at Chebyshev's nodes."""


PIECE = 1 << 16
"""Numbers in a piece of a map: the dozen passes of :func:`relu_rows` stay in a core's own cache."""


def _coefficients(dtype: torch.dtype) -> tuple[float, ...]:
    return _DOUBLE if dtype == torch.float64 else _SINGLE


@cache
def _constants(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """One, and r, as tensors."""
    numbers = (1.0, *_coefficients(dtype))
    return tuple(torch.tensor(value, dtype=dtype, device=device) for value in numbers)


def inverse_root(value: Tensor) -> Tensor:
    """``value^(-1/2)``, and a large number where it is zero."""
    return value.clamp(min=torch.finfo(value.dtype).tiny).rsqrt()


def relu(cross: Tensor, inverse: Tensor | None, own: Tensor, offset: Tensor | None) -> Tensor:
    r""":math:`k_1/\sqrt a`, plus an offset.

    Args:
        cross: c, of any shape.
        inverse: :math:`1/\sqrt a` in a shape that broadcasts to it; 1 if not given.
        own: b.
        offset: to be added.
    """
    x = cross * inverse_root(own)
    if inverse is not None:
        x = x * inverse
    u = (1 - x.abs()).clamp(min=0)
    first, *others = _coefficients(cross.dtype)
    series = torch.full_like(u, first)
    for coefficient in others:
        series = series * u + coefficient
    value = (x.clamp(min=0) + u * u.sqrt() * series) * own.sqrt()
    return value if offset is None else value + offset


def variance(rows: Tensor, own: Tensor, squares: Tensor, shift: Tensor | None) -> Tensor:
    r""":math:`\max(k_{tt} - |V|^2, 0) + |\Sigma V - u|^2` for rows V and a diagonal Σ.

    Args:
        rows: V, ``(rows, P)``, or a map ``(N, P, *space)``.
        own: :math:`k_{tt}`, ``(rows,)`` or ``(N, *space)``.
        squares: :math:`\Sigma^2`, in a shape that broadcasts to V.
        shift: u, likewise; zero if not given.
    """
    square = rows * rows
    residual = (own - square.sum(1)).clamp(min=0)
    if shift is None:
        return residual + (square * squares).sum(1)
    return residual + (rows * squares.sqrt() - shift).square().sum(1)


def relu_rows(rows: Tensor, inverse: Tensor | None, own: Tensor, offset: Tensor | None) -> Tensor:
    """:func:`relu` of rows ``(rows, P)`` and ``own`` ``(rows, 1)``, piece by piece and in place."""
    one, first, *others = _constants(rows.dtype, rows.device)
    value, reciprocal, root = torch.empty_like(rows), inverse_root(own), own.sqrt()
    for piece in pieces(rows, PIECE):
        out = value[piece]
        torch.mul(rows[piece], reciprocal[piece], out=out)
        if inverse is not None:
            out.mul_(inverse)
        u = torch.abs(out)
        torch.sub(one, u, out=u).clamp_(min=0)
        series = torch.addcmul(others[0], first, u)
        for coefficient in others[1:]:
            torch.addcmul(coefficient, series, u, out=series)
        series.mul_(u)
        out.clamp_(min=0).addcmul_(series, u.sqrt_())
        if offset is None:
            out.mul_(root[piece])
        else:
            torch.addcmul(offset, out, root[piece], out=out)
    return value


def variance_rows(rows: Tensor, own: Tensor, squares: Tensor, shift: Tensor | None) -> Tensor:
    """:func:`variance`, piece by piece."""
    result, ones = torch.empty_like(own), torch.ones_like(squares)
    for piece in pieces(rows):
        part, out = rows[piece], result[piece]
        square = part.square()
        torch.sub(own[piece], square @ ones, out=out)
        out.clamp_(min=0)
        if shift is None:
            out.addmv_(square, squares)
        else:
            inner = torch.addcmul(-shift, part, squares.sqrt(), out=square)
            out.addmv_(inner.square_(), ones)
    return result


class Functions(NamedTuple):
    """Who works out :func:`relu` and :func:`variance` of rows."""

    relu: Callable[[Tensor, Tensor | None, Tensor, Tensor | None], Tensor]
    variance: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def functions(*, compiled: bool) -> Functions:
    """Those made by ``torch.compile`` where they are asked for and there is a compiler."""
    made = _compiled() if compiled else None
    return made or Functions(relu_rows, variance_rows)


@cache
def _compiled() -> Functions | None:
    if compiled_engine() is None:
        return None
    return Functions(compiled_for_rows(relu), compiled_for_rows(variance))

r"""The elementwise functions of folded machines: constant parameters, no derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from convdkm.kernels import Angular
from convdkm.kernels.pointwise import PIECE
from convdkm.runtime.compiled import compiled_engine
from convdkm.runtime.for_rows import compiled_for_rows
from convdkm.runtime.maps import pieces


def inverse_root(value: Tensor) -> Tensor:
    """``value^(-1/2)``, and a large number where it is zero."""
    return value.clamp(min=torch.finfo(value.dtype).tiny).rsqrt()


def angular(
    kernel: Angular, cross: Tensor, inverse: Tensor | None, own: Tensor, offset: Tensor | None
) -> Tensor:
    r""":math:`\kappa(\rho)\sqrt b`, plus an offset.

    Args:
        kernel: which κ.
        cross: c, of any shape.
        inverse: :math:`1/\sqrt a` in a shape that broadcasts to it; 1 if not given.
        own: b.
        offset: to be added.
    """
    return _by_roots(cross, inverse, inverse_root(own), own.sqrt(), offset, kernel)


def _by_roots(  # noqa: PLR0917
    cross: Tensor,
    inverse: Tensor | None,
    reciprocal: Tensor,
    root: Tensor,
    offset: Tensor | None,
    kernel: Angular,
) -> Tensor:
    cosine = cross * reciprocal
    if inverse is not None:
        cosine = cosine * inverse
    value = kernel.of_cosine(cosine.clamp(-1, 1)) * root
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


def angular_rows(
    kernel: Angular, rows: Tensor, inverse: Tensor | None, own: Tensor, offset: Tensor | None
) -> Tensor:
    """:func:`angular` of rows ``(rows, P)`` and ``own`` ``(rows, 1)``, piece by piece."""
    value, reciprocal, root = torch.empty_like(rows), inverse_root(own), own.sqrt()
    for piece in pieces(rows, PIECE):
        roots = reciprocal[piece], root[piece]
        value[piece] = _by_roots(rows[piece], inverse, *roots, offset, kernel)
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
    """Who works out :func:`angular` and :func:`variance` of rows."""

    angular: Callable[[Angular, Tensor, Tensor | None, Tensor, Tensor | None], Tensor]
    variance: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def functions(*, compiled: bool) -> Functions:
    """Those made by ``torch.compile`` where they are asked for and there is a compiler."""
    made = _compiled() if compiled else None
    return made or Functions(angular_rows, variance_rows)


@cache
def _compiled() -> Functions | None:
    if compiled_engine() is None:
        return None
    fast = compiled_for_rows(_by_roots)

    def angular_of_rows(
        kernel: Angular, rows: Tensor, inverse: Tensor | None, own: Tensor, offset: Tensor | None
    ) -> Tensor:
        # Compiled along, these roots would be worked out anew for every number of a row.
        result: Tensor = fast(rows, inverse, inverse_root(own), own.sqrt(), offset, kernel)
        return result

    return Functions(angular_of_rows, compiled_for_rows(variance))

"""PyTorch's own operations, on pieces of a map that stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from convdkm.runtime.engine import DiagonalGradient, VarianceGradient, learned
from convdkm.runtime.maps import pieces, without_autocast


class Piecewise:
    """See :class:`convdkm.runtime.elementwise.Engine`."""

    def variance(
        self, rows: Tensor, own: Tensor, spread: Tensor, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return _variance(rows, own, lambda part: learned(part, spread, shift))

    def variance_gradient(
        self,
        grad: Tensor,
        by_product: Tensor,
        matrix: Tensor,
        saved: tuple[Tensor, Tensor, Tensor, Tensor | None],
    ) -> VarianceGradient:
        rows, residual, spread, shift = saved
        total, by_spread = torch.empty_like(rows), torch.zeros_like(spread)
        by_shift = None if shift is None else torch.zeros_like(shift)
        by_own = grad.masked_fill(residual == 0, 0)
        for piece in pieces(rows):
            part, out = rows[piece], total[piece]
            inner = learned(part, spread, shift).mul_(2 * grad[piece, None])
            torch.mul(part, -2 * by_own[piece, None], out=out)
            out.addmm_(by_product[piece], matrix).addmm_(inner, spread.T)
            by_spread.addmm_(part.T, inner)
            if by_shift is not None:
                by_shift.sub_(inner.sum(0))
        return VarianceGradient(total, by_own, by_spread, by_shift)

    def diagonal_variance(
        self, rows: Tensor, own: Tensor, roots: Tensor, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        variance, residual = torch.empty_like(own), torch.empty_like(own)
        # A sum over few numbers side by side is slow where it is not a product.
        ones, squares = torch.ones_like(roots), roots.square()
        with without_autocast(rows):
            for piece in pieces(rows):
                part, left, out = rows[piece], residual[piece], variance[piece]
                square = part.square()
                torch.sub(own[piece], square @ ones, out=left)
                left.clamp_(min=0)
                if shift is None:
                    torch.add(left, square @ squares, out=out)
                else:
                    inner = torch.addcmul(-shift, part, roots, out=square).square_()
                    torch.add(left, inner @ ones, out=out)
        return variance, residual

    def diagonal_gradient(
        self,
        grad: Tensor,
        by_product: Tensor,
        matrix: Tensor,
        saved: tuple[Tensor, Tensor, Tensor, Tensor | None],
    ) -> DiagonalGradient:
        rows, residual, roots, shift = saved
        total, second = torch.empty_like(rows), rows.new_zeros(rows.shape[1], rows.shape[1])
        first = None if shift is None else torch.zeros_like(shift)
        by_own = grad.masked_fill(residual == 0, 0)
        for piece in pieces(rows):
            part, out, weight = rows[piece], total[piece], grad[piece, None]
            inner = _stretched(part, roots, shift).mul_(roots).mul_(weight)
            torch.addcmul(inner, part, by_own[piece, None], value=-1, out=out).mul_(2)
            out.addmm_(by_product[piece], matrix)
            weighted = torch.mul(part, weight, out=inner)
            second.addmm_(part.T, weighted)
            if first is not None:
                first.add_(weighted.sum(0))
        return DiagonalGradient(total, by_own, second, first)


def _variance(
    rows: Tensor, own: Tensor, inner: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """``max(own − |V|², 0) + |U|²`` with U made of V by ``inner``, and the first of the two."""
    variance, residual = torch.empty_like(own), torch.empty_like(own)
    for piece in pieces(rows):
        part, left = rows[piece], residual[piece]
        torch.sub(own[piece], part.square().sum(1), out=left)
        left.clamp_(min=0)
        torch.add(left, inner(part).square_().sum(1), out=variance[piece])
    return variance, residual


def _stretched(rows: Tensor, roots: Tensor, shift: Tensor | None) -> Tensor:
    """ΣV − t."""
    result = rows * roots
    return result if shift is None else result.sub_(shift)


PIECEWISE = Piecewise()

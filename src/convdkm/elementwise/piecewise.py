"""PyTorch's own operations, on pieces of a map that stay in the processor's cache."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from convdkm.elementwise.engine import (
    BlockGradient,
    DiagonalGradient,
    ReluGradient,
    VarianceGradient,
    learned,
)
from convdkm.maps import pieces
from convdkm.numerics import inverse_root, safe_divide


class Piecewise:
    """See :class:`convdkm.elementwise.Engine`."""

    def relu(self, cross: Tensor, inducing: Tensor, own: Tensor, offset: Tensor | None) -> Tensor:
        value = torch.empty_like(cross)
        for piece in pieces(cross):
            part, out = cross[piece], value[piece]
            supplement = _angle_into(out, part, inducing, own[piece])
            out.addcmul_(supplement, part)
            if offset is not None:
                out.add_(offset)
        return value

    def relu_gradient(
        self, grad: Tensor, cross: Tensor, inducing: Tensor, own: Tensor
    ) -> ReluGradient:
        by_cross, by_own = torch.empty_like(cross), torch.empty_like(own)
        by_point, total = torch.zeros_like(inducing), grad.new_zeros(())
        sine = torch.empty_like(cross[next(pieces(cross))]) if len(cross) else cross
        for piece in pieces(cross):
            part, weighted = grad[piece], sine[: len(cross[piece])]
            supplement = _angle_into(weighted, cross[piece], inducing, own[piece])
            torch.mul(supplement, part, out=by_cross[piece])
            weighted.mul_(part)
            torch.sum(weighted, 1, keepdim=True, out=by_own[piece])
            by_point.add_(weighted.sum(0))
            total.add_(part.sum())
        return ReluGradient(
            by_cross, safe_divide(0.5 * by_point, inducing), safe_divide(0.5 * by_own, own), total
        )

    def gaussian(self, cross: Tensor, inducing: Tensor, own: Tensor, gamma: Tensor) -> Tensor:
        value, roots = torch.empty_like(cross), own.sqrt()
        inverse, root = inverse_root(inducing) * gamma, inducing.sqrt()
        reciprocal = inverse_root(own)
        for piece in pieces(cross):
            out = torch.mul(cross[piece], reciprocal[piece], out=value[piece])
            # Cosines lie between −1 and 1 but for rounding.
            out.mul_(inverse).sub_(gamma).clamp_(max=0).exp_().mul_(root).mul_(roots[piece])
        return value

    def gaussian_gradient(
        self, grad: Tensor, value: Tensor, blocks: tuple[Tensor, Tensor, Tensor], gamma: Tensor
    ) -> BlockGradient:
        cross, inducing, own = blocks
        by_cross, by_own = torch.empty_like(cross), torch.empty_like(own)
        by_point = torch.zeros_like(inducing)
        inverse, reciprocal = inverse_root(inducing) * gamma, inverse_root(own)
        for piece in pieces(cross):
            weighted, out = grad[piece] * value[piece], by_cross[piece]
            torch.mul(weighted, reciprocal[piece], out=out).mul_(inverse)
            weighted.addcmul_(out, cross[piece], value=-1)
            torch.sum(weighted, 1, keepdim=True, out=by_own[piece])
            by_point.add_(weighted.sum(0))
        return BlockGradient(
            by_cross, safe_divide(0.5 * by_point, inducing), safe_divide(0.5 * by_own, own)
        )

    def polynomial(
        self, cross: Tensor, inducing: Tensor, own: Tensor, weights: tuple[float, ...]
    ) -> Tensor:
        value, inverse, reciprocal = torch.empty_like(cross), *map(inverse_root, (inducing, own))
        for piece in pieces(cross):
            cosine = torch.mul(cross[piece], reciprocal[piece]).mul_(inverse)
            _series_into(value[piece], cosine, weights).mul_(cross[piece])
        return value

    def polynomial_gradient(
        self,
        grad: Tensor,
        blocks: tuple[Tensor, Tensor, Tensor],
        both: tuple[tuple[float, ...], tuple[float, ...]],
    ) -> BlockGradient:
        cross, inducing, own = blocks
        weights, slopes = both
        by_cross, by_own = torch.empty_like(cross), torch.empty_like(own)
        by_point = torch.zeros_like(inducing)
        inverse, reciprocal = inverse_root(inducing), inverse_root(own)
        for piece in pieces(cross):
            part, out = grad[piece], by_cross[piece]
            cosine = torch.mul(cross[piece], reciprocal[piece]).mul_(inverse)
            _series_into(out, cosine, weights)
            slope = _series_into(torch.empty_like(cosine), cosine, slopes).mul_(cosine)
            out.add_(slope).mul_(part)
            weighted = slope.mul_(part).mul_(cross[piece])
            torch.sum(weighted, 1, keepdim=True, out=by_own[piece])
            by_point.add_(weighted.sum(0))
        return BlockGradient(
            by_cross, safe_divide(-0.5 * by_point, inducing), safe_divide(-0.5 * by_own, own)
        )

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
        return _variance(rows, own, lambda part: _stretched(part, roots, shift))

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


def _series_into(out: Tensor, x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """Write a polynomial in x into ``out``; see :func:`convdkm.elementwise.engine.series`."""
    *lower, last = coefficients
    if not lower:
        return out.fill_(last)
    torch.mul(x, last, out=out).add_(lower[-1])
    for coefficient in lower[-2::-1]:
        out.mul_(x).add_(coefficient)
    return out


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


def _angle_into(sine: Tensor, cross: Tensor, inducing: Tensor, own: Tensor) -> Tensor:
    """Write s into ``sine``; return π − θ."""
    torch.mul(own, inducing, out=sine)
    sine.addcmul_(cross, cross, value=-1).clamp_(min=0).sqrt_()
    return torch.atan2(cross, sine).add_(math.pi / 2)

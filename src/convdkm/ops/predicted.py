r"""The data blocks that a learned Gram predicts, as one operation."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from convdkm.gram import INDUCING_DTYPE
from convdkm.numerics import safe_divide
from convdkm.ops.scalars import Scalar, as_tensor, exponential, inverse_root, scalar
from convdkm.ops.synchronise import mean_and_pull_back
from convdkm.runtime.elementwise import PIECEWISE, Engine
from convdkm.runtime.maps import as_rows, from_rows, product, summed_products


class Scale(NamedTuple):
    r"""Where the one factor :math:`n = \Psi A^{-1/2}` of a normalisation comes from.

    Attributes:
        log_scale: log Ψ, ``()``; Ψ is one if not given.
        by_mean: A is the mean of the variances at hand.
        fixed: A itself, ``()``, where it is not; one if not given.
    """

    log_scale: Tensor | None = None
    by_mean: bool = False
    fixed: Tensor | None = None


def predicted(
    white: Tensor,
    tt: Tensor,
    spread: Tensor,
    factor: Tensor,
    *,
    orthogonal: bool = False,
    shift: Tensor | None = None,
    scale: Scale = Scale(),  # noqa: B008
    engine: Engine = PIECEWISE,
) -> tuple[Tensor, Tensor, Tensor | None]:
    r"""From V and :math:`k_{tt}`, with :math:`U = Q^T V - u`,

    .. math:: G_{it} = n F U, \qquad g_{tt} = n^2\left(\max(k_{tt} - |V|^2, 0) + |U|^2\right),
              \qquad n = \Psi A^{-1/2},

    where A may be the mean of what stands in the brackets.

    Args:
        white: V, ``(N, P, *space)``.
        tt: :math:`k_{tt}`, ``(N, *space)``.
        spread: Q, ``(P, M)``.
        factor: F, ``(Q, M)``.
        orthogonal: the rows of Q are orthogonal to each other, so that :math:`|U|` needs no U.
        shift: u, ``(M,)``; zero if not given.
        scale: gives n.
        engine: runs the elementwise functions on maps.

    Returns:
        :math:`G_{it}`, :math:`g_{tt}`, and A where it is a mean.
    """
    shift = None if shift is None else shift.to(white.dtype)
    rows, flat = as_rows(white), tt.reshape(-1)
    it, flat, mean = _Predicted.apply(rows, flat, spread, factor, shift, *scale, orthogonal, engine)
    return from_rows(it, white.shape[0], white.shape[2:]), flat.reshape(tt.shape), mean


def roots_and_shift(spread: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor | None]:
    r"""Σ and t such that :math:`|Q^TV - u| = |\Sigma V - t|`, for Q with orthogonal rows."""
    roots = spread.square().sum(1).sqrt_()
    return roots, None if shift is None else safe_divide(spread @ shift.to(spread.dtype), roots)


class _Predicted(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        rows: Tensor,
        tt: Tensor,
        spread: Tensor,
        factor: Tensor,
        shift: Tensor | None,
        log_scale: Tensor | None,
        by_mean: bool,
        fixed: Tensor | None,
        orthogonal: bool,
        engine: Engine,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        wide = spread.to(INDUCING_DTYPE)
        turned = shift
        if orthogonal:
            roots, turned = roots_and_shift(wide, shift)
            narrow, turned = roots.to(rows.dtype), None if turned is None else turned.to(rows.dtype)
            variance, clamped = engine.diagonal_variance(rows, tt, narrow, turned)
        else:
            narrow = wide.to(rows.dtype)
            variance, clamped = engine.variance(rows, tt, narrow, shift)
        scale: Scalar = 1.0
        mean, ctx.inverse = None, None
        if by_mean:
            mean, ctx.pull_back = mean_and_pull_back(variance)
            scale = ctx.inverse = inverse_root(scalar(mean))
        elif fixed is not None:
            scale = inverse_root(scalar(fixed))
        if log_scale is not None:
            scale = scale * exponential(scalar(log_scale))
        scaled = factor.to(INDUCING_DTYPE) * scale
        matrix = (scaled @ wide.T).to(rows.dtype)
        offset = None
        if shift is not None:
            offset = (scaled @ shift.to(INDUCING_DTYPE)).neg_().to(rows.dtype)
        ctx.engine, ctx.scale, ctx.orthogonal = engine, scale, orthogonal
        # Not the variance itself: the operation after this one keeps the scaled one anyway.
        tt = variance * (scale * scale)
        ctx.save_for_backward(rows, clamped, tt, narrow, wide, scaled, matrix, shift, turned)
        if mean is not None:
            ctx.mark_non_differentiable(mean)
        return product(rows, matrix, offset), tt, mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_it: Tensor, by_tt: Tensor, _: Any) -> Any:
        rows, clamped, tt, narrow, spread, scaled, matrix, shift, turned = ctx.saved_tensors
        scale: Scalar = ctx.scale
        by_matrix = summed_products(by_it, rows).to(INDUCING_DTYPE)
        by_scaled = by_matrix @ spread
        by_shift = None
        if shift is not None:
            by_offset = by_it.sum(0).to(INDUCING_DTYPE)
            by_scaled.addr_(by_offset, shift.to(INDUCING_DTYPE), alpha=-1)
            by_shift = -(scaled.T @ by_offset)
        by_variance = by_tt * (scale * scale)
        by_log_scale: Scalar = 0.0
        if ctx.needs_input_grad[5] or ctx.inverse is not None:
            through_variance = 2 * scalar(by_tt @ tt)
            by_log_scale = scalar((by_scaled * scaled).sum()) + through_variance
        if ctx.inverse is not None:
            by_mean = -0.5 * by_log_scale * ctx.inverse * ctx.inverse
            by_each: Any = scalar(ctx.pull_back(as_tensor(by_mean, by_tt)))
            by_variance.add_(by_each)
        saved = (rows, clamped, narrow, turned)
        if ctx.orthogonal:
            by_rows, by_kernel_tt, second, first = ctx.engine.diagonal_gradient(
                by_variance, by_it, matrix, saved
            )
            by_spread = 2 * (second.to(INDUCING_DTYPE) @ spread)
            if first is not None:
                first, wide_shift = first.to(INDUCING_DTYPE), shift.to(INDUCING_DTYPE)
                by_spread.addr_(first, wide_shift, alpha=-2)
                by_shift += 2 * (wide_shift * by_variance.sum() - spread.T @ first)
        else:
            by_rows, by_kernel_tt, by_spread, more = ctx.engine.variance_gradient(
                by_variance, by_it, matrix, saved
            )
            by_spread = by_spread.to(INDUCING_DTYPE)
            if by_shift is not None:
                by_shift += more
        return (
            by_rows,
            by_kernel_tt,
            by_spread.addmm_(by_matrix.T, scaled),
            by_scaled * scale,
            None if by_shift is None else by_shift.to(shift.dtype),
            as_tensor(by_log_scale, scaled) if ctx.needs_input_grad[5] else None,
            *(None,) * 4,
        )

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


class Predicted(NamedTuple):
    """The blocks that :func:`predicted` gives, and the statistics of the batch that it took.

    Attributes:
        it, tt: the blocks.
        shift: u, where it is that of the batch; it has no gradient.
        mean: A, where it is a mean; it has no gradient.
    """

    it: Tensor
    tt: Tensor
    shift: Tensor | None
    mean: Tensor | None


def predicted(
    white: Tensor,
    tt: Tensor,
    spread: Tensor,
    factor: Tensor,
    *,
    orthogonal: bool = False,
    shift: Tensor | None = None,
    centred: bool = False,
    scale: Scale = Scale(),  # noqa: B008
    engine: Engine = PIECEWISE,
) -> Predicted:
    r"""From V and :math:`k_{tt}`, with :math:`U = Q^T V - u`,

    .. math:: G_{it} = n F U, \qquad g_{tt} = n^2\left(\max(k_{tt} - |V|^2, 0) + |U|^2\right),
              \qquad n = \Psi A^{-1/2},

    where A may be the mean of what stands in the brackets, and u that of :math:`Q^T V`.

    Args:
        white: V, ``(N, P, *space)``; it may be in a lower precision than the variances.
        tt: :math:`k_{tt}`, ``(N, *space)``.
        spread: Q, ``(P, M)``.
        factor: F, ``(Q, M)``.
        orthogonal: the rows of Q are orthogonal to each other, so that :math:`|U|` needs no U.
        shift: u, ``(M,)``; zero if not given.
        centred: u is the mean over images and places.
        scale: gives n.
        engine: runs the elementwise functions on maps.
    """
    shift = None if shift is None else shift.to(tt.dtype)
    rows, flat = as_rows(white), tt.reshape(-1)
    it, flat, shift, mean = _Predicted.apply(
        rows, flat, spread, factor, shift, *scale, centred, orthogonal, engine
    )
    it = from_rows(it, white.shape[0], white.shape[2:])
    return Predicted(it, flat.reshape(tt.shape), shift if centred else None, mean)


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
        centred: bool,
        orthogonal: bool,
        engine: Engine,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        wide, dtype = spread.to(INDUCING_DTYPE), tt.dtype
        average, ctx.pull_back_average = None, None
        if centred:
            average, ctx.pull_back_average = mean_and_pull_back(rows, dtype)
            shift = (average.to(INDUCING_DTYPE) @ wide).to(dtype)
        turned = shift
        if orthogonal:
            roots, turned = roots_and_shift(wide, shift)
            narrow, turned = roots.to(dtype), None if turned is None else turned.to(dtype)
            variance, clamped = engine.diagonal_variance(rows, tt, narrow, turned)
        else:
            narrow = wide.to(dtype)
            variance, clamped = engine.variance(rows, tt, narrow, shift)
        scale: Scalar = 1.0
        mean, ctx.inverse = None, None
        if by_mean:
            mean, ctx.pull_back = mean_and_pull_back(variance, dtype)
            scale = ctx.inverse = inverse_root(scalar(mean))
        elif fixed is not None:
            scale = inverse_root(scalar(fixed))
        if log_scale is not None:
            scale = scale * exponential(scalar(log_scale))
        scaled = factor.to(INDUCING_DTYPE) * scale
        matrix = (scaled @ wide.T).to(dtype)
        offset = None
        if shift is not None:
            offset = (scaled @ shift.to(INDUCING_DTYPE)).neg_().to(dtype)
        ctx.engine, ctx.scale, ctx.orthogonal = engine, scale, orthogonal
        # Not the variance itself: the operation after this one keeps the scaled one anyway.
        tt = variance * (scale * scale)
        ctx.save_for_backward(
            rows, clamped, tt, narrow, wide, scaled, matrix, shift, turned, average
        )
        ctx.mark_non_differentiable(*(each for each in (mean, shift) if each is not None))
        return product(rows, matrix, offset), tt, shift, mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_it: Tensor, by_tt: Tensor, *_: Any) -> Any:
        rows, clamped, tt, narrow, spread, scaled, matrix, shift, turned, average = (
            ctx.saved_tensors
        )
        scale: Scalar = ctx.scale
        by_matrix = summed_products(by_it, rows).to(INDUCING_DTYPE)
        by_scaled, by_spread = by_matrix @ spread, by_matrix.T @ scaled
        if shift is not None:
            wide_shift = shift.to(INDUCING_DTYPE)
            by_offset = by_it.sum(0, dtype=tt.dtype).to(INDUCING_DTYPE)
            by_scaled.addr_(by_offset, wide_shift, alpha=-1)
        by_variance = by_tt * (scale * scale)
        by_log_scale: Scalar = 0.0
        if ctx.needs_input_grad[5] or ctx.inverse is not None:
            through_variance = 2 * scalar(by_tt @ tt)
            by_log_scale = scalar((by_scaled * scaled).sum()) + through_variance
        if ctx.inverse is not None:
            by_mean = -0.5 * by_log_scale * ctx.inverse * ctx.inverse
            by_each: Any = scalar(ctx.pull_back(as_tensor(by_mean, by_tt)))
            by_variance.add_(by_each)
        by_shift, of_every_row = None, None
        if shift is not None:
            first = (by_variance.to(rows.dtype) @ rows).to(INDUCING_DTYPE)
            by_shift = 2 * (wide_shift * by_variance.sum() - spread.T @ first)
            by_shift.sub_(scaled.T @ by_offset)
            by_spread.addr_(first, wide_shift, alpha=-2)
            if average is not None:
                by_spread.addr_(average.to(INDUCING_DTYPE), by_shift)
                by_average = (spread @ by_shift).to(tt.dtype)
                of_every_row, by_shift = ctx.pull_back_average(by_average), None
        gradient = ctx.engine.diagonal_gradient if ctx.orthogonal else ctx.engine.variance_gradient
        by_rows, by_kernel_tt, second = gradient(
            by_variance, by_it, matrix, (rows, clamped, narrow, turned, of_every_row)
        )
        return (
            by_rows,
            by_kernel_tt,
            by_spread.addmm_(second.to(INDUCING_DTYPE), spread, alpha=2),
            by_scaled * scale,
            None if by_shift is None else by_shift.to(shift.dtype),
            as_tensor(by_log_scale, scaled) if ctx.needs_input_grad[5] else None,
            *(None,) * 5,
        )

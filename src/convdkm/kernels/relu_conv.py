r"""The arc-cosine kernel of order 1 and the convolution after it, as one operation.

Of all that lies between the incoming Gram and the result of the convolution, only the kernel's
value is kept for the backward pass; its derivatives are worked out again from the Gram.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from convdkm.elementwise import PIECEWISE, Engine
from convdkm.layers.window import Window
from convdkm.maps import as_rows, from_rows, product_dtype, without_autocast
from convdkm.scalars import as_tensor, scalar


def relu_convolution(
    cross: Tensor,
    inducing: Tensor,
    own: Tensor,
    weight: Tensor,
    *,
    slope: Tensor | None = None,
    offset: Tensor | None = None,
    window: Window,
    engine: Engine = PIECEWISE,
) -> Tensor:
    r"""Convolve :math:`\kappa + \pi\sigma_b^2/\sigma_w^2` of a Gram's blocks with ``weight``.

    Args:
        cross: :math:`G_{it}`, ``(N, P, *space)``.
        inducing: the diagonal of :math:`G_{ii}`, ``(P,)``.
        own: :math:`g_{tt}`, ``(N, *space)``.
        weight: ``(Q, P, *size)``.
        slope: :math:`\sigma_w^2`, ``()``; one if not given.
        offset: :math:`\sigma_b^2`, ``()``; zero if not given.
        window: the convolution's geometry, with as many zeros before an axis as after it.
        engine: who works out κ.
    """
    result: Tensor = _ReluConvolution.apply(
        cross, inducing, own, weight, slope, offset, window, engine
    )
    return result


class _ReluConvolution(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        cross: Tensor,
        inducing: Tensor,
        own: Tensor,
        weight: Tensor,
        slope: Tensor | None,
        offset: Tensor | None,
        window: Window,
        engine: Engine,
    ) -> Tensor:
        ctx.window, ctx.engine, ctx.dtype = window, engine, product_dtype(cross)
        narrow = inducing.to(cross.dtype)
        ctx.slope = 1.0 if slope is None else scalar(slope)
        ctx.shift = None if offset is None else math.pi * scalar(offset) / ctx.slope
        shift = None if ctx.shift is None else as_tensor(ctx.shift, cross)
        rows = engine.relu(as_rows(cross), narrow, own.reshape(-1, 1), shift)
        maps = from_rows(rows, cross.shape[0], cross.shape[2:])
        ctx.save_for_backward(cross, narrow, own, weight, maps, inducing)
        with without_autocast(cross):
            return window.convolve(maps.to(ctx.dtype), weight.to(ctx.dtype)).to(cross.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        cross, narrow, own, weight, maps, inducing = ctx.saved_tensors
        dtype = ctx.dtype
        by_maps, by_weight = ctx.window.convolve_backward(
            grad.to(dtype), maps.to(dtype), weight.to(dtype), ctx.needs_input_grad[3]
        )
        gradient = ctx.engine.relu_gradient(
            as_rows(by_maps.to(cross.dtype)), as_rows(cross), narrow, own.reshape(-1, 1)
        )
        by_slope = by_offset = None
        if ctx.shift is not None and any(ctx.needs_input_grad[4:6]):
            by_shift = scalar(gradient.offset)
            by_slope = as_tensor(-by_shift * ctx.shift / ctx.slope, inducing)
            by_offset = as_tensor(math.pi * by_shift / ctx.slope, inducing)
        return (
            from_rows(gradient.cross, cross.shape[0], cross.shape[2:]),
            gradient.inducing.to(inducing.dtype),
            gradient.own.reshape(own.shape),
            None if by_weight is None else by_weight.to(weight.dtype),
            by_slope if ctx.needs_input_grad[4] else None,
            by_offset if ctx.needs_input_grad[5] else None,
            None,
            None,
        )

r"""The arc-cosine kernel of order 1 and the convolution after it, as one operation.

Of all that lies between the incoming Gram and the result of the convolution, only the kernel's
value is kept for the backward pass; its derivatives are worked out again from the Gram.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from convdkm.elementwise import PIECEWISE, Engine
from convdkm.layers.window import Window
from convdkm.maps import as_rows, from_rows, product_dtype, without_autocast


def relu_convolution(
    cross: Tensor,
    inducing: Tensor,
    own: Tensor,
    offset: Tensor | None,
    weight: Tensor,
    *,
    window: Window,
    engine: Engine = PIECEWISE,
) -> Tensor:
    """Convolve κ of a Gram's blocks with ``weight``.

    Args:
        cross: :math:`G_{it}`, ``(N, P, *space)``.
        inducing: the diagonal of :math:`G_{ii}`, ``(P,)``.
        own: :math:`g_{tt}`, ``(N, *space)``.
        offset: β, one number; zero if not given.
        weight: ``(Q, P, *size)``.
        window: the convolution's geometry, with as many zeros before an axis as after it.
        engine: who works out κ.
    """
    result: Tensor = _ReluConvolution.apply(cross, inducing, own, offset, weight, window, engine)
    return result


class _ReluConvolution(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        cross: Tensor,
        inducing: Tensor,
        own: Tensor,
        offset: Tensor | None,
        weight: Tensor,
        window: Window,
        engine: Engine,
    ) -> Tensor:
        ctx.window, ctx.engine, ctx.dtype = window, engine, product_dtype(cross)
        rows = engine.relu(as_rows(cross), inducing, own.reshape(-1, 1), offset)
        maps = from_rows(rows, cross.shape[0], cross.shape[2:])
        ctx.save_for_backward(cross, inducing, own, offset, weight, maps)
        with without_autocast(cross):
            return window.convolve(maps.to(ctx.dtype), weight.to(ctx.dtype)).to(cross.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        cross, inducing, own, offset, weight, maps = ctx.saved_tensors
        engine, dtype = ctx.engine, ctx.dtype
        needs_weight = ctx.needs_input_grad[4]
        by_maps, by_weight = ctx.window.convolve_backward(
            grad.to(dtype), maps.to(dtype), weight.to(dtype), needs_weight
        )
        by_rows = as_rows(by_maps.to(cross.dtype))
        by_offset = None
        if offset is not None and ctx.needs_input_grad[3]:
            by_offset = by_rows.sum().reshape(offset.shape).to(offset.dtype)
        state = engine.relu_state(as_rows(cross), inducing, own.reshape(-1, 1))
        by_cross, by_point, by_row = engine.relu_gradient(by_rows, state)
        return (
            from_rows(by_cross, cross.shape[0], cross.shape[2:]),
            _half_over(by_point, inducing),
            _half_over(by_row.reshape(own.shape), own),
            by_offset,
            None if by_weight is None else by_weight.to(weight.dtype),
            None,
            None,
        )


def _half_over(total: Tensor, own: Tensor) -> Tensor:
    """``total / 2 own``, and zero where ``own`` is zero."""
    zero = own == 0
    return (0.5 * total / own.masked_fill(zero, 1)).masked_fill(zero, 0)

r"""The variance that a learned Gram gives every pixel, in one pass over the map."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from convdkm.elementwise import PIECEWISE, Engine
from convdkm.maps import as_rows, from_rows


def learned_variance(
    white: Tensor,
    own: Tensor,
    spread: Tensor,
    shift: Tensor | None = None,
    *,
    engine: Engine = PIECEWISE,
) -> tuple[Tensor, Tensor]:
    r""":math:`g_{tt} = \max(k_{tt} - |V|^2, 0) + |U|^2` with :math:`U = Q^T V - u`.

    Args:
        white: V, ``(N, P, *space)``.
        own: :math:`k_{tt}`, ``(N, *space)``.
        spread: Q, ``(P, M)``.
        shift: u, ``(M,)``; zero if not given.
        engine: who does the work.

    Returns:
        :math:`g_{tt}`, and V again: to be used by what comes after, so that the gradients of V
        are added up in the same pass.
    """
    spread = spread.to(white.dtype)
    shift = None if shift is None else shift.to(white.dtype)
    variance, rows = _LearnedVariance.apply(as_rows(white), own.reshape(-1), spread, shift, engine)
    return variance.reshape(own.shape), from_rows(rows, white.shape[0], white.shape[2:])


class _LearnedVariance(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, rows: Tensor, own: Tensor, spread: Tensor, shift: Tensor | None, engine: Engine
    ) -> tuple[Tensor, Tensor]:
        variance, residual = engine.variance(rows, own, spread, shift)
        ctx.engine = engine
        ctx.save_for_backward(rows, residual, spread, shift)
        ctx.set_materialize_grads(False)
        return variance, rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, by_rows: Tensor | None) -> Any:
        if grad is None:
            return by_rows, None, None, None, None
        return (*ctx.engine.variance_gradient(grad, by_rows, ctx.saved_tensors), None)

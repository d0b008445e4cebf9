"""A map that goes two ways, one of which sees every so-many-th place only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from convdkm.runtime.maps import channels_last


def every(values: Tensor, strides: Sequence[int]) -> Tensor:
    """Every so-many-th place of ``(..., *space)``, from the first on."""
    first = values.ndim - len(strides)
    return values[(slice(None),) * first + tuple(slice(None, None, stride) for stride in strides)]


def forked(maps: Tensor, strides: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The map ``(N, P, *space)`` itself and every so-many-th place of it.

    The gradients of both are added where they meet: a slice by itself would have its gradient
    written into a map of zeros first.
    """
    whole, part = _Forked.apply(maps, tuple(strides))
    return whole, part


class _Forked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, strides: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        ctx.strides = strides
        return maps.view_as(maps), channels_last(every(maps, strides))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_whole: Tensor, by_part: Tensor) -> Any:
        total = by_whole.clone()
        every(total, ctx.strides).add_(by_part)
        return total, None

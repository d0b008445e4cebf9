"""Covariances of every place with the same place of another image, as whole maps.

Convolutions move both places alike, so that without pooling covariances of different places never
matter to variances, nor to a network whose top is :class:`convdkm.Flatten`. Maps are ``(H, W,
*pairs)``: shifts then move whole runs of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from convdkm.exact import Convolution
from convdkm.kernels import Kernel
from convdkm.lab.baselines.kernels.layers import Layer, body_of, side_of
from convdkm.layers import Skip


def overlap(values: Tensor, shift: int, *axes: int) -> Tensor:
    """The entries whose indices along all axes are still inside when ``shift`` is added to them."""
    for axis in axes:
        length = values.shape[axis]
        start = min(max(0, -shift), length)
        values = values.narrow(axis, start, max(0, length - abs(shift)))
    return values


def window_sum(values: Tensor, radius: int, *axes: int) -> Tensor:
    """The sum over |d| ≤ radius of the values moved by d along all axes at once; zero outside."""
    total = values.clone()
    for shift in (*range(-radius, 0), *range(1, radius + 1)):
        overlap(total, shift, *axes).add_(overlap(values, -shift, *axes))
    return total


def through(
    layers: Sequence[Layer], maps: Tensor, activate: Callable[[Kernel, Tensor], Tensor]
) -> Tensor:
    """Maps ``(H, W, *pairs)`` after layers other than pooling.

    Args:
        layers: from the bottom up.
        maps: covariances or variances.
        activate: applies a kernel to maps, which it may overwrite.
    """
    for layer in layers:
        if isinstance(layer, Convolution):
            radius = side_of(layer) // 2
            maps = window_sum(window_sum(maps, radius, 0), radius, 1)
            maps.mul_(layer.weight_variance / layer.window.count)
            if layer.bias_variance:
                maps.add_(layer.bias_variance)
        elif isinstance(layer, Skip):
            body = through(body_of(layer), maps.clone(), activate)
            maps = torch.lerp(maps, body, float(layer.weight))
        else:
            assert isinstance(layer, Kernel), "pooling mixes places"
            maps = activate(layer, maps)
    return maps

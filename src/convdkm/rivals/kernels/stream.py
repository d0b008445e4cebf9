r"""Layers as streams of slabs: each takes the rows of a covariance one by one and gives its own.

A convolution holds on to 2r + 1 rows, a pooling to one, a residual sum to those its body is behind
by; nothing holds a whole covariance. Slabs are overwritten by the stage that receives them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from convdkm.rivals.kernels.arccosine import relu_of_cosines_
from convdkm.rivals.kernels.geometry import Geometry, Roots
from convdkm.rivals.kernels.layers import (
    AveragePool,
    Conv,
    Flatten,
    GlobalAverage,
    Layer,
    LocalAverage,
    Nonlinearity,
    Relu,
    Residual,
    Top,
)

Slabs = Iterator[Tensor]


def run(layers: Sequence[Layer], slabs: Slabs, roots: Iterator[Roots], geometry: Geometry) -> Slabs:
    """Through all layers; ``roots`` gives those of each nonlinearity as it is met."""
    for layer in layers:
        if isinstance(layer, Conv):
            slabs = _convolved(slabs, layer, geometry)
        elif isinstance(layer, AveragePool):
            slabs = _pooled(slabs, layer.size)
        elif isinstance(layer, Residual):
            slabs = _summed(slabs, layer, roots, geometry)
        else:
            slabs = _activated(slabs, layer, next(roots))
    return slabs


def drawn_together(slabs: Slabs) -> Slabs:
    """From slabs ``(W, H', W', B)`` of all pairs of places those with s' = s, ``(W, 1, B)``."""
    for row, slab in enumerate(slabs):
        yield slab[:, row].diagonal(dim1=0, dim2=1).T[:, None, :].contiguous()


def read_out(slabs: Slabs, top: Top, space: tuple[int, int]) -> Tensor:
    """What the top leaves of each pair, added up in float64: ``(B,)``, or ``(L, B)`` of Together.

    Some S² numbers of like size are summed; in float32 that would cost several digits.
    """
    height, width = space
    places = height * width
    if isinstance(top, Flatten):
        return _total(slab.sum(0, dtype=torch.float64) for slab in slabs) / places
    if isinstance(top, GlobalAverage):
        sums = (slab.flatten(0, 2).sum(0, dtype=torch.float64) for slab in slabs)
        return _total(sums) / places**2
    rows, columns = _blur_weights(height, top), _blur_weights(width, top)[:, None, :, None]
    parts = []
    for row, slab in enumerate(slabs):
        weights = rows[row][None, :, None, None] * columns
        parts.append((slab * weights.to(slab)).flatten(0, 2).sum(0, dtype=torch.float64))
    return _total(parts) / (places * top.size**4)


def _total(parts: Iterator[Tensor] | Sequence[Tensor]) -> Tensor:
    total: Tensor | None = None
    for part in parts:
        total = part if total is None else total.add_(part)
    assert total is not None, "an image has at least one row"
    return total


def _blur_weights(count: int, top: LocalAverage) -> Tensor:
    """In how many windows along one axis two places lie both, ``(count, count)``."""
    places = torch.arange(count)
    window = ((places[:, None] - places).abs() <= top.size // 2).to(torch.float64)
    return window @ window.T


def _activated(slabs: Slabs, layer: Nonlinearity, roots: Roots) -> Slabs:
    scratch: Tensor | None = None
    for row, slab in enumerate(slabs):
        roots.divide_(slab, row)
        if isinstance(layer, Relu):
            if scratch is None:
                scratch = slab.new_empty((2, *slab.shape))
            relu_of_cosines_(slab, scratch)
            roots.multiply_(slab, row, layer.gain / 2)
        else:
            # Cosines are at most 1 but for rounding.
            slab.sub_(1).clamp_(max=0).mul_(layer.gamma).exp_()
            roots.multiply_(slab, row, 1.0)
        yield slab


def _convolved(slabs: Slabs, layer: Conv, geometry: Geometry) -> Slabs:
    radius = layer.size // 2
    weight = layer.weight_variance / layer.size**2
    held: deque[tuple[int, Tensor]] = deque(maxlen=2 * radius + 1)

    def total(row: int) -> Tensor:
        own = next(slab for place, slab in held if place == row)
        result = own * weight
        for place, slab in held:
            if place != row and abs(place - row) <= radius:
                geometry.add_row(result, slab, place - row, weight)
        return result.add_(layer.bias_variance) if layer.bias_variance else result

    count = 0
    for slab in slabs:
        held.append((count, geometry.along_width(slab, radius)))
        del slab
        count += 1
        if count > radius:
            yield total(count - 1 - radius)
    for row in range(max(0, count - radius), count):
        yield total(row)


def _pooled(slabs: Slabs, size: int) -> Slabs:
    waiting: Tensor | None = None
    for row, slab in enumerate(slabs):
        part = _folded(_folded(slab, 0, size), 1, size)
        waiting = part if waiting is None else waiting.add_(part)
        if row % size == size - 1:
            yield _folded(waiting, 2, size).mul_(size**-4)
            waiting = None


def _folded(slab: Tensor, dim: int, size: int) -> Tensor:
    """The sum of each ``size`` neighbours along an axis."""
    parts = slab.unflatten(dim, (-1, size)).unbind(dim + 1)
    total = parts[0].contiguous() if size == 1 else parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total


def _summed(slabs: Slabs, layer: Residual, roots: Iterator[Roots], geometry: Geometry) -> Slabs:
    kept: deque[Tensor] = deque()

    def branch() -> Slabs:
        for slab in slabs:
            kept.append(slab)
            yield slab.clone()

    body = run(layer.body, branch(), roots, geometry)

    def merged() -> Slabs:
        for slab in body:
            yield slab.mul_(layer.body_weight).add_(kept.popleft(), alpha=layer.shortcut_weight)

    return merged()


def slab_bytes(
    layers: Sequence[Layer], space: tuple[int, int], itemsize: int, *, apart: bool
) -> int:
    """Bytes that a stream holds at most for each pair of images, generously."""
    height, width = space
    total = 0
    rows = 0
    for layer in layers:
        slab = width * (height * width if apart else 1) * itemsize
        if isinstance(layer, Conv):
            rows = layer.size + 2
        elif isinstance(layer, Residual):
            inner = slab_bytes(layer.body, (height, width), itemsize, apart=apart)
            behind = sum(part.size // 2 for part in layer.body if isinstance(part, Conv))
            total += inner
            rows = behind + 2
        elif isinstance(layer, AveragePool):
            rows = 2
            height, width = height // layer.size, width // layer.size
        else:
            rows = 3
        total += rows * slab
    last = width * (height * width if apart else 1)
    return total + last * (itemsize + 2 * 8)

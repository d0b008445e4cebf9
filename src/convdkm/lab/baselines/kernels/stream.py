r"""Layers as streams of slabs: each takes the rows of a covariance one by one and gives its own.

A convolution holds on to 2r + 1 rows, a pooling to one, a residual sum to those its body is behind
by; nothing holds a whole covariance. Slabs are overwritten by the stage that receives them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from convdkm.exact import Convolution
from convdkm.kernels import Kernel
from convdkm.kernels.blocks import Scratch
from convdkm.lab.baselines.kernels.compiled import OfRows, compiled
from convdkm.lab.baselines.kernels.geometry import Geometry, Roots
from convdkm.lab.baselines.kernels.layers import Layer, LocalAverage, Top, body_of, side_of
from convdkm.layers import AveragePool, Flatten, GlobalAveragePool, Skip

Slabs = Iterator[Tensor]


def run(
    layers: Sequence[Layer],
    slabs: Slabs,
    roots: Iterator[Roots],
    geometry: Geometry,
    *,
    joined: bool = False,
) -> Slabs:
    """Through all layers.

    Args:
        layers: from the bottom up.
        slabs: of what is below them.
        roots: those of each nonlinearity, in order.
        geometry: of the slabs.
        joined: compile each nonlinearity, with the convolution below it, into one pass; for slabs
            of all pairs of places with a single left image.
    """
    below: Convolution | None = None
    for layer, above in zip(layers, (*layers[1:], None), strict=False):
        if isinstance(layer, Convolution):
            if joined and isinstance(above, Kernel):
                below = layer
            else:
                slabs = _convolved(slabs, layer, geometry)
        elif isinstance(layer, AveragePool):
            slabs = _pooled(slabs, side_of(layer))
        elif isinstance(layer, Skip):
            slabs = _summed(slabs, layer, roots, geometry, joined=joined)
        else:
            own = next(roots)
            made = compiled(below, layer, own.left.root.dtype) if joined else None
            if made is not None:
                slabs = _in_one_pass(slabs, below, own, made)
            else:
                if below is not None:
                    slabs = _convolved(slabs, below, geometry)
                slabs = _activated(slabs, layer, own)
            below = None
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
    if isinstance(top, GlobalAveragePool):
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


def _activated(slabs: Slabs, kernel: Kernel, roots: Roots) -> Slabs:
    scratch = Scratch()
    for row, slab in enumerate(slabs):
        yield kernel.scaled(kernel.core_(slab, *roots.at(row), scratch))


def _in_one_pass(slabs: Slabs, conv: Convolution | None, roots: Roots, made: OfRows) -> Slabs:
    radius = 0 if conv is None else side_of(conv) // 2
    outside: Tensor | None = None
    for row, held in _windows(slabs, radius):
        if outside is None:
            outside = torch.zeros_like(held[row])
        rows = [held.get(row + shift, outside) for shift in range(-radius, radius + 1)]
        yield made(rows, *roots.at(row))


def _convolved(slabs: Slabs, layer: Convolution, geometry: Geometry) -> Slabs:
    radius = side_of(layer) // 2
    weight = layer.weight_variance / layer.window.count
    along = (geometry.along_width(slab, radius) for slab in slabs)
    for row, held in _windows(along, radius):
        result = held[row] * weight
        for place, slab in held.items():
            if place != row:
                geometry.add_row(result, slab, place - row, weight)
        yield result.add_(layer.bias_variance) if layer.bias_variance else result


def _windows(slabs: Slabs, radius: int) -> Iterator[tuple[int, dict[int, Tensor]]]:
    """Every row with the slabs of those at most ``radius`` away from it."""
    held: deque[tuple[int, Tensor]] = deque(maxlen=2 * radius + 1)

    def around(row: int) -> dict[int, Tensor]:
        return {place: slab for place, slab in held if abs(place - row) <= radius}

    count = 0
    for slab in slabs:
        held.append((count, slab))
        count += 1
        if count > radius:
            yield count - 1 - radius, around(count - 1 - radius)
    for row in range(max(0, count - radius), count):
        yield row, around(row)


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


def _summed(
    slabs: Slabs, layer: Skip, roots: Iterator[Roots], geometry: Geometry, *, joined: bool
) -> Slabs:
    kept: deque[Tensor] = deque()

    def branch() -> Slabs:
        for slab in slabs:
            kept.append(slab)
            yield slab.clone()

    weight = float(layer.weight)
    body = run(body_of(layer), branch(), roots, geometry, joined=joined)

    def merged() -> Slabs:
        for slab in body:
            yield slab.mul_(weight).add_(kept.popleft(), alpha=1 - weight)

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
        if isinstance(layer, Convolution):
            rows = side_of(layer) + 2
        elif isinstance(layer, Skip):
            inner = slab_bytes(body_of(layer), (height, width), itemsize, apart=apart)
            reaches = (
                side_of(part) // 2 for part in body_of(layer) if isinstance(part, Convolution)
            )
            behind = sum(reaches)
            total += inner
            rows = behind + 2
        elif isinstance(layer, AveragePool):
            rows = 2
            height, width = height // side_of(layer), width // side_of(layer)
        else:
            rows = 3
        total += rows * slab
    last = width * (height * width if apart else 1)
    return total + last * (itemsize + 2 * 8)

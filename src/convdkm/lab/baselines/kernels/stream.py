r"""What layers do to covariances of places, a row of the left image at a time or as whole maps.

A covariance :math:`\Sigma(s, s')` of every place of one image with every place of B others is too
large to keep: on 32×32 places it is a million numbers for each pair. It is made and used up in
*slabs* ``(W, H', W', B)``, one for each row h of the left image, so that all the work is on a few
slabs that stay in the processor's cache. The images of the right side are innermost: shifts move
whole runs of memory.

Layers are streams of slabs: each takes them one by one and gives its own. A convolution holds on to
2r + 1 of them, a pooling to one, a residual sum to those its body is behind by; nothing holds a
whole covariance. Slabs are overwritten by the stage that receives them.

Convolutions move both places alike, so that without pooling covariances of different places matter
neither to variances nor to a network whose top is :class:`convdkm.Flatten`. Covariances of every
place with the same place of another image are whole *maps* ``(H, W, *pairs)``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

from convdkm.exact import Convolution
from convdkm.kernels import Kernel
from convdkm.kernels.blocks import Scratch, Side
from convdkm.lab.baselines.kernels.compiled import OfRows, compiled
from convdkm.lab.baselines.kernels.layers import Architecture, Layer, LocalAverage, body_of, side_of
from convdkm.layers import AveragePool, GlobalAveragePool, Skip

Slabs = Iterator[Tensor]
Sides = tuple[Side, Side]
"""The variances before a kernel of the left places, ``(H, W, 1, 1, 1)`` or ``(H, W, 1, 1, B)``, and
of the right ones, ``(H', W', B)``."""


@dataclass(frozen=True)
class Features:
    r"""Vectors of each place whose products, plus ``bias``, are the first covariance.

    Where the first layer is a convolution they are patches times
    :math:`\sqrt{\sigma_w^2 / (C D)}`, and the bias its :math:`\sigma_b^2`; else they are pixels
    over :math:`\sqrt C`, and there is none.

    The vectors are ``(N, K, S)``, where S are the places of the grid ``space``, ``(H, W)``.
    """

    vectors: Tensor
    bias: float
    space: tuple[int, int]

    @classmethod
    def of(cls, architecture: Architecture, images: Tensor) -> Features:
        """The features of images ``(N, C, H, W)``."""
        space = (images.shape[2], images.shape[3])
        first = architecture.first
        if first is None:
            return cls(images.flatten(2) * images.shape[1] ** -0.5, 0.0, space)
        patches = F.unfold(images, side_of(first), padding=side_of(first) // 2)
        scale = (first.weight_variance / patches.shape[1]) ** 0.5
        return cls(patches * scale, first.bias_variance, space)

    @cached_property
    def innermost(self) -> Tensor:
        """The vectors with images innermost, ``(K, S·N)``."""
        return self.vectors.permute(1, 2, 0).flatten(1).contiguous()

    @cached_property
    def by_place(self) -> Tensor:
        """The vectors by place, ``(S, K, N)``."""
        return self.vectors.permute(2, 1, 0).contiguous()

    def maps(self, right: Features, *, matched: bool = False) -> Tensor:
        """Covariances of each place of every left image with that same place of every right one.

        The result is ``(H, W, L, B)``; or ``(H, W, 1, N)`` of matched images, those of the same
        index on both sides.
        """
        if matched:
            products = (self.vectors * right.vectors).sum(1).T.contiguous().unsqueeze(1)
        else:
            products = self.by_place.mT @ right.by_place
        return self._with_bias(products).unflatten(0, self.space)

    def slabs(self, right: Features) -> Slabs:
        """Covariances of all pairs of places, one row of the left image at a time.

        There is one left image for all right ones, or one for each of them.
        """
        height, width = self.space
        for part in self.vectors.split(width, 2):
            if len(part) == 1:
                slab = part[0].T @ right.innermost
            else:
                slab = torch.einsum("nkw,nks->wsn", part, right.vectors).contiguous()
            yield self._with_bias(slab).reshape(width, height, width, -1)

    def _with_bias(self, products: Tensor) -> Tensor:
        return products.add_(self.bias) if self.bias else products


def run(
    layers: Sequence[Layer], slabs: Slabs, sides: Iterator[Sides], *, joined: bool = False
) -> Slabs:
    """Slabs after layers, from the bottom up, with the variances before each kernel in order.

    If ``joined``, each kernel is compiled with the convolution below it into one pass; this is for
    slabs with a single left image.
    """
    below: Convolution | None = None
    for layer, above in zip(layers, (*layers[1:], None), strict=False):
        if isinstance(layer, Convolution):
            if joined and isinstance(above, Kernel):
                below = layer
            else:
                slabs = _convolved(slabs, layer)
        elif isinstance(layer, AveragePool):
            slabs = _pooled(slabs, side_of(layer))
        elif isinstance(layer, Skip):
            slabs = _summed(slabs, layer, sides, joined=joined)
        else:
            left, right = next(sides)
            made = compiled(below, layer, left.root.dtype) if joined else None
            if made is not None:
                slabs = _in_one_pass(slabs, below, left, right, made)
            else:
                slabs = slabs if below is None else _convolved(slabs, below)
                slabs = _activated(slabs, layer, left, right)
            below = None
    return slabs


def _activated(slabs: Slabs, kernel: Kernel, left: Side, right: Side) -> Slabs:
    scratch = Scratch()
    for row, slab in enumerate(slabs):
        yield kernel.scaled(kernel.core_(slab, left.part(row), right, scratch))


def _in_one_pass(
    slabs: Slabs, conv: Convolution | None, left: Side, right: Side, made: OfRows
) -> Slabs:
    radius = 0 if conv is None else side_of(conv) // 2
    outside: Tensor | None = None
    for row, held in _windows(slabs, radius):
        if outside is None:
            outside = torch.zeros_like(held[row])
        rows = [held.get(row + shift, outside) for shift in range(-radius, radius + 1)]
        yield made(rows, left.part(row), right)


def _convolved(slabs: Slabs, layer: Convolution) -> Slabs:
    radius = side_of(layer) // 2
    weight = layer.weight_variance / layer.window.count
    along = (_window_sum(slab, radius, 0, 2) for slab in slabs)
    for row, held in _windows(along, radius):
        result = held[row] * weight
        for place, slab in held.items():
            shift = place - row
            if shift:
                _overlap(result, shift, 1).add_(_overlap(slab, -shift, 1), alpha=weight)
        yield result.add_(layer.bias_variance) if layer.bias_variance else result


def _windows(slabs: Slabs, radius: int) -> Iterator[tuple[int, dict[int, Tensor]]]:
    """Every row with the slabs of those at most ``radius`` away from it."""
    held: dict[int, Tensor] = {}
    row, ahead = 0, enumerate(slabs)
    while True:
        held.pop(row - radius - 1, None)
        held.update(islice(ahead, 1 if row else radius + 1))
        if row not in held:
            return
        yield row, held
        row += 1


def _overlap(values: Tensor, shift: int, *axes: int) -> Tensor:
    """The entries whose indices along all axes are still inside when ``shift`` is added to them."""
    for axis in axes:
        length = values.shape[axis]
        start = min(max(0, -shift), length)
        values = values.narrow(axis, start, max(0, length - abs(shift)))
    return values


def _window_sum(values: Tensor, radius: int, *axes: int) -> Tensor:
    """The sum over |d| ≤ radius of the values moved by d along all axes at once; zero outside."""
    total = values.clone()
    for shift in (*range(-radius, 0), *range(1, radius + 1)):
        _overlap(total, shift, *axes).add_(_overlap(values, -shift, *axes))
    return total


def _pooled(slabs: Slabs, size: int) -> Slabs:
    folded = (_folded(_folded(slab, 0, size), 1, size) for slab in slabs)
    for first in folded:
        rows = reduce(torch.Tensor.add_, islice(folded, size - 1), first)
        yield _folded(rows, 2, size).mul_(size**-4)


def _folded(slab: Tensor, axis: int, size: int) -> Tensor:
    """The sum of each ``size`` neighbours along an axis."""
    return reduce(torch.add, slab.unflatten(axis, (-1, size)).unbind(axis + 1))


def _summed(slabs: Slabs, layer: Skip, sides: Iterator[Sides], *, joined: bool) -> Slabs:
    kept: deque[Tensor] = deque()

    def branch() -> Slabs:
        for slab in slabs:
            kept.append(slab)
            yield slab.clone()

    weight = float(layer.weight)
    body = run(body_of(layer), branch(), sides, joined=joined)
    return (slab.mul_(weight).add_(kept.popleft(), alpha=1 - weight) for slab in body)


def through(
    layers: Sequence[Layer], maps: Tensor, activate: Callable[[Kernel, Tensor], Tensor]
) -> Tensor:
    """Maps of covariances or variances ``(H, W, *pairs)`` after layers other than pooling.

    ``activate`` applies a kernel to maps, which it may overwrite.
    """
    for layer in layers:
        if isinstance(layer, Convolution):
            radius = side_of(layer) // 2
            maps = _window_sum(_window_sum(maps, radius, 0), radius, 1)
            maps.mul_(layer.weight_variance / layer.window.count)
            maps = maps.add_(layer.bias_variance) if layer.bias_variance else maps
        elif isinstance(layer, Skip):
            body = through(body_of(layer), maps.clone(), activate)
            maps = torch.lerp(maps, body, float(layer.weight))
        else:
            assert isinstance(layer, Kernel), "pooling mixes places"
            maps = activate(layer, maps)
    return maps


def diagonal_of(slabs: Iterable[Tensor]) -> Tensor:
    """The covariances with s' = s, as maps ``(H, W, B)``."""
    return torch.stack([slab[:, row].diagonal().mT for row, slab in enumerate(slabs)])


def read_out(slabs: Slabs, top: GlobalAveragePool | LocalAverage, space: tuple[int, int]) -> Tensor:
    """What the top leaves of each pair of images, ``(B,)``, added up in float64.

    Some S² numbers of like size are summed; in float32 that would cost several digits.
    """
    places = space[0] * space[1]
    divisor = places**2
    if isinstance(top, LocalAverage):
        slabs, divisor = _weighted(slabs, top, space), places * top.size**4
    total = torch.zeros((), dtype=torch.float64)
    for slab in slabs:
        total = total + slab.flatten(0, 2).sum(0, dtype=torch.float64)
    return total / divisor


def _weighted(slabs: Slabs, top: LocalAverage, space: tuple[int, int]) -> Slabs:
    """Every covariance times the number of windows in which both its places lie."""

    def shared(count: int) -> Tensor:
        """The same along one axis, ``(count, count)``."""
        places = torch.arange(count)
        window = ((places[:, None] - places).abs() <= top.size // 2).to(torch.float64)
        return window @ window.T

    rows, columns = shared(space[0]), shared(space[1])[:, None, :, None]
    for row, slab in enumerate(slabs):
        yield slab * (rows[row][None, :, None, None] * columns).to(slab)


def rows_held(layer: Layer) -> int:
    """Slabs that the stream of a layer holds at most, generously."""
    if isinstance(layer, Convolution):
        return 2 + side_of(layer) + side_of(layer) // 2  # the last for a sum around it, which waits
    if isinstance(layer, Skip):
        return 2 + sum(map(rows_held, body_of(layer)))
    return 3

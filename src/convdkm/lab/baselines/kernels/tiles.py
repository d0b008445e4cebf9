"""The kernel between a few images of each side, by streams that stay within a memory budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from convdkm.exact import Convolution
from convdkm.kernels.blocks import Side
from convdkm.lab.baselines.kernels import source
from convdkm.lab.baselines.kernels.geometry import Apart, Geometry, Matched, Roots, Together
from convdkm.lab.baselines.kernels.layers import Architecture, nonlinearities, side_of
from convdkm.lab.baselines.kernels.profile import variance_maps
from convdkm.lab.baselines.kernels.source import Course, Features
from convdkm.lab.baselines.kernels.stream import Slabs, drawn_together, read_out, run, slab_bytes
from convdkm.layers import AveragePool

SLAB, JOINED_SLAB = 1 << 18, 1 << 17
"""Numbers in a slab: enough that calls cost little, few enough that slabs stay in cache. Compiled
functions make fewer calls."""


@dataclass(frozen=True)
class Pictures:
    """Images with their variances before every nonlinearity.

    Attributes:
        images: ``(N, C, H, W)``.
        maps: ``(N, H, W)`` for each nonlinearity.
    """

    images: Tensor
    maps: list[Tensor]

    def __len__(self) -> int:
        return len(self.images)

    def part(self, which: slice) -> Pictures:
        """Some of the images."""
        return Pictures(self.images[which], [own[which] for own in self.maps])

    def padded(self, count: int) -> Pictures:
        """So many images: the last one again and again after all of them."""
        which = torch.arange(count).clamp(max=len(self) - 1)
        return Pictures(self.images[which], [own[which] for own in self.maps])

    def flipped(self) -> Pictures:
        """The mirror images; so are their variances, which need no work."""
        return Pictures(self.images.flip(-1), [own.flip(-1) for own in self.maps])


class Tiles:
    """How one architecture's kernels are computed on images of one size.

    Args:
        architecture: the network.
        shape: ``(C, H, W)`` of an image.
        itemsize: bytes of a number.
        memory: bytes that working space may take.
        threads: that work on tiles side by side, if the memory suffices.
        joined: compile nonlinearities and convolutions into one pass, where they meet all pairs of
            places.

    Attributes:
        threads: how many do.
        left, right: images of each side that one works on at a time.
        matched_at_once: images that are paired with themselves at a time.
        least: bytes that a single pair needs.
        fits: whether ``memory`` suffices for that.
    """

    def __init__(
        self,
        architecture: Architecture,
        shape: tuple[int, int, int],
        itemsize: int,
        memory: int,
        *,
        threads: int = 1,
        joined: bool = False,
    ) -> None:
        self.architecture, self.joined = architecture, joined
        channels, height, width = shape
        self.space = (height, width)
        self.top = architecture.space(height, width)
        self.course = Course.of(architecture)
        self.apart = self.course.pairs
        first = architecture.layers[:1]
        patch = first[0].window.count if first and isinstance(first[0], Convolution) else 1
        vectors = 3 * patch * channels * height * width * itemsize
        if self.apart:
            streamed = self._streamed_apart(itemsize)
            self.least = 8 * vectors + streamed
        else:
            streamed = slab_bytes(self.course.together, self.space, itemsize, apart=False)
            self.least = 2 * vectors + streamed
        self.fits = memory >= self.least
        self.threads = max(1, min(threads, memory // self.least))
        memory //= self.threads
        if self.apart:
            self.left = 1
            fits = (memory - 8 * vectors) // (vectors + streamed)
            slab = JOINED_SLAB if joined else SLAB
            self.right = max(1, min(fits, slab // (width * height * width)))
        else:
            fits = min(memory // (4 * vectors), math.isqrt(memory // (2 * streamed)))
            self.left = self.right = max(1, min(fits, math.isqrt(SLAB // width)))
        self.matched_at_once = max(1, min(64, memory // (2 * self.least)))

    def _streamed_apart(self, itemsize: int) -> int:
        height, width = self.space
        begun = 2 * width * height * width * itemsize
        pools = [side_of(one) for one in self.course.apart if isinstance(one, AveragePool)]
        # Variances need the covariances that the first pooling leaves, all at once.
        begun += 3 * (height * width // pools[0] ** 2) ** 2 * itemsize if pools else 0
        streamed = slab_bytes(self.course.apart, self.space, itemsize, apart=True)
        return begun + streamed + slab_bytes(self.course.together, self.top, itemsize, apart=False)

    def map_sizes(self) -> Iterator[tuple[int, int]]:
        """The grid of places before each nonlinearity."""
        height, width = self.space
        for layer in self.architecture.layers:
            if isinstance(layer, AveragePool):
                height, width = height // side_of(layer), width // side_of(layer)
            yield from ((height, width) for _ in nonlinearities((layer,)))

    def side(self, images: Tensor) -> Pictures:
        """Images with their variances, found a few at a time."""
        parts = [
            variance_maps(self.architecture, part) for part in images.split(self.matched_at_once)
        ]
        return Pictures(images, [torch.cat(maps) for maps in zip(*parts, strict=True)])

    def tile(self, left: Pictures, right: Pictures) -> Tensor:
        """k of every left with every right image, in float64.

        Args:
            left: any number.
            right: no more than ``self.right`` for the budget to hold.
        """
        count = len(right)
        # A function is compiled for one size; a few images at the end of a row are done without.
        joined = self.joined and self.apart and 2 * count > self.right
        if joined and count < self.right:
            right = right.padded(self.right)
        others = Features.of(self.architecture, right.images)
        kinds = self._kinds(Together)
        sides = _right(right.maps, kinds)
        if not self.apart:
            rows = []
            for part in _steps(len(left), self.left):
                some = left.part(part)
                slabs = source.together(Features.of(self.architecture, some.images), others)
                rows.append(self._finished(slabs, _roots(some.maps, sides, kinds)))
            return torch.cat(rows)
        values = torch.empty((len(left), len(right)), dtype=torch.float64)
        for part in _steps(len(left), 8):
            some = left.part(part)
            vectors = Features.of(self.architecture, some.images)
            for index in range(len(some)):
                own = [maps[index : index + 1] for maps in some.maps]
                slabs = source.apart(vectors, index, others)
                values[part.start + index] = self._finished(
                    slabs, _roots(own, sides, kinds), joined=joined
                ).flatten()
        return values[:, :count]

    def matched(self, left: Pictures, right: Pictures) -> Tensor:
        """k of each left image with the right one of the same number, ``(N,)`` in float64."""
        parts = []
        kinds = self._kinds(Matched)
        for step in _steps(len(left), self.matched_at_once):
            some, others = left.part(step), right.part(step)
            pair = [Features.of(self.architecture, one.images) for one in (some, others)]
            begin = source.matched_apart if self.apart else source.matched_together
            sides = _right(others.maps, kinds)
            roots = _roots(some.maps, sides, kinds)
            parts.append(self._finished(begin(*pair), roots).flatten())
        return torch.cat(parts)

    def _kinds(self, after: Geometry) -> list[Geometry]:
        """The geometry of each nonlinearity: all pairs of places, and then ``after``."""
        total = len(list(nonlinearities(self.architecture.layers)))
        count = len(list(self.course.nonlinearities_apart())) if self.apart else 0
        return [Apart if index < count else after for index in range(total)]

    def _finished(self, slabs: Slabs, roots: Iterator[Roots], *, joined: bool = False) -> Tensor:
        course = self.course
        if self.apart:
            slabs = run(course.apart, slabs, roots, Apart, joined=joined)
        if course.draws:
            slabs = drawn_together(slabs)
        slabs = run(course.together, slabs, roots, Together)
        return read_out(slabs, self.architecture.top, self.top)


def _right(maps: Sequence[Tensor], kinds: Sequence[Geometry]) -> list[Side]:
    return [Side.of(kind.right(own)) for own, kind in zip(maps, kinds, strict=True)]


def _roots(
    left: Sequence[Tensor], right: Sequence[Side], kinds: Sequence[Geometry]
) -> Iterator[Roots]:
    for own, other, kind in zip(left, right, kinds, strict=True):
        yield Roots(Side.of(kind.left(own)), other, moving=kind.moving)


def _steps(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))

"""The kernel between a few images of each side, within a memory budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from convdkm.kernels import Kernel
from convdkm.kernels.blocks import Scratch, Side
from convdkm.lab.baselines.kernels import stream
from convdkm.lab.baselines.kernels.layers import Architecture, Layer, nonlinearities, side_of
from convdkm.lab.baselines.kernels.stream import Features
from convdkm.layers import AveragePool, Flatten

SLAB, JOINED_SLAB = 1 << 18, 1 << 17
"""Numbers that are worked on at a time: enough that calls cost little, few enough that they stay in
cache. Compiled functions make fewer calls."""
COPIES = 8
"""Maps that are in memory at a time for each pair of images, generously, where only the covariances
of a place with itself matter."""


@dataclass(frozen=True)
class Prepared:
    """Images ``(N, C, H, W)`` with all that is computed once for each of them.

    The maps are the variances of their places before each nonlinearity, ``(H, W, N)`` of each; the
    scale is what their kernels are multiplied by, ``(N,)``, or None for 1.
    """

    tiles: Tiles
    images: Tensor
    maps: Sequence[Tensor]
    scale: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    def part(self, which: slice | Tensor) -> Prepared:
        """Some of the images."""
        maps = [each[..., which].contiguous() for each in self.maps]
        scale = None if self.scale is None else self.scale[which]
        return Prepared(self.tiles, self.images[which], maps, scale)

    def flipped(self) -> Prepared:
        """The mirror images; so are their variances, which need no work."""
        maps = [each.flip(1) for each in self.maps]
        return replace(self, images=self.images.flip(-1), maps=maps)


class Tiles:
    """How one architecture's kernels are computed on images of one shape ``(C, H, W)``.

    Args:
        itemsize: bytes of a value.
        memory: bytes that working space may take.
        compiled: compile nonlinearities and convolutions that meet all pairs of places.

    Attributes:
        threads: how many are used; fewer if the memory does not suffice for all.
        left, right: images of each side that a thread works on at a time.
        matched_at_once: images that are paired with themselves at a time.
        least: bytes that a single pair needs.
        map_places: variances that are kept of each image, those below nonlinearities.
    """

    def __init__(
        self,
        architecture: Architecture,
        shape: Sequence[int],
        itemsize: int,
        memory: int,
        *,
        compiled: bool,
    ) -> None:
        self.architecture = architecture
        self.pairs = architecture.needs_pairs
        self.joined = compiled and self.pairs
        self._pair_kernels = len(list(nonlinearities(architecture.stages[0])))
        channels, height, width = shape
        self.spaces = architecture.spaces(height, width)
        patch = 1 if architecture.first is None else architecture.first.window.count
        vectors = 3 * patch * channels * height * width * itemsize
        streamed = itemsize * self._values_per_pair()
        self.least = (8 if self.pairs else 2) * vectors + streamed
        threads = 1 if self.joined else torch.get_num_threads()
        self.threads = max(1, min(threads, memory // self.least))
        memory //= self.threads
        if self.pairs:
            self.left = 1
            fits = (memory - 8 * vectors) // (vectors + streamed)
            slab = JOINED_SLAB if self.joined else SLAB
            self.right = max(1, min(fits, slab // (width * height * width)))
        else:
            fits = min(memory // (4 * vectors), math.isqrt(memory // (2 * streamed)))
            self.left = self.right = max(1, min(fits, math.isqrt(SLAB // (height * width))))
        self.matched_at_once = max(1, min(64, memory // (2 * self.least)))
        below = zip(architecture.layers, self.spaces, strict=False)
        self.map_places = sum(h * w * len(list(nonlinearities([each]))) for each, (h, w) in below)

    def _values_per_pair(self) -> int:
        """Values in memory at a time for each pair of images, generously."""
        height, width = self.spaces[-1]
        maps = COPIES * height * width
        if not self.pairs:
            return maps
        layers, rest = self.architecture.stages
        spaces = self.spaces[len(self.architecture.layers) - len(layers + rest) :]
        below = zip(layers, spaces, strict=False)
        slabs = sum(stream.rows_held(layer) * h * w**2 for layer, (h, w) in below)
        first_and_last = 2 * self.spaces[0][0] * self.spaces[0][1] ** 2 + 5 * height * width**2
        # Variances need the covariances that the first pooling leaves, all at once.
        pools = [side_of(layer) for layer in layers if isinstance(layer, AveragePool)]
        pooled = 3 * (math.prod(self.spaces[0]) // pools[0] ** 2) ** 2 if pools else 0
        return maps + slabs + first_and_last + pooled

    def prepare(self, images: Tensor) -> Prepared:
        """Images with their variances, found a few at a time."""
        parts = [variances(self.architecture, part) for part in images.split(self.matched_at_once)]
        return Prepared(self, images, [torch.cat(maps, 2) for maps in zip(*parts, strict=True)])

    def tile(self, left: Prepared, right: Prepared) -> Tensor:
        """k of every left with every right image, ``(L, B)`` in float64.

        There are at most ``self.right`` right images, for the budget to hold.
        """
        count = len(right)
        # A function is compiled for one size; a few images at the end of a row are done without.
        joined = self.joined and 2 * count > self.right
        if joined and count < self.right:
            right = right.part(torch.arange(self.right).clamp(max=count - 1))
        others = self._right(right)
        rows = [
            self._entries(left.part(part), *others, joined=joined)
            for part in steps(len(left), self.left)
        ]
        return torch.cat(rows)[:, :count]

    def matched(self, left: Prepared, right: Prepared) -> Tensor:
        """k of each left image with the right one of the same index, ``(N,)`` in float64."""
        parts = [
            self._entries(left.part(part), *self._right(right.part(part)), matched=True)
            for part in steps(len(left), self.matched_at_once)
        ]
        return torch.cat(parts, 1).flatten()

    def _right(self, images: Prepared) -> tuple[Features, list[Side]]:
        """What is computed of the right images once for all left ones."""
        split = self._pair_kernels
        maps = [*images.maps[:split], *(each.unsqueeze(2) for each in images.maps[split:])]
        return Features.of(self.architecture, images.images), list(map(Side.of, maps))

    def _entries(
        self,
        left: Prepared,
        others: Features,
        other_sides: list[Side],
        *,
        matched: bool = False,
        joined: bool = False,
    ) -> Tensor:
        """k of all left with all right images, ``(L, B)``, or ``(1, N)`` of those that match."""
        shaped = [maps[:, :, None, None] for maps in left.maps[: self._pair_kernels]]
        shaped += [maps.unsqueeze(2 if matched else 3) for maps in left.maps[len(shaped) :]]
        sides = zip(map(Side.of, shaped), other_sides, strict=True)
        features = Features.of(self.architecture, left.images)
        layers, rest = self.architecture.stages
        if self.pairs:
            slabs = stream.run(layers, features.slabs(others), sides, joined=joined)
            if not isinstance(self.architecture.top, Flatten):
                return stream.read_out(slabs, self.architecture.top, self.spaces[-1]).unsqueeze(0)
            maps = stream.diagonal_of(slabs).unsqueeze(2)
        else:
            maps = features.maps(others, matched=matched)
        scratch = Scratch()

        def activate(kernel: Kernel, maps: Tensor) -> Tensor:
            return kernel.scaled(kernel.core_(maps, *next(sides), scratch))

        return mean_over_places(stream.through(rest, maps, activate))


def mean_over_places(maps: Tensor) -> Tensor:
    """The mean of maps ``(H, W, *pairs)``, added up in float64."""
    return maps.mean((0, 1), dtype=torch.float64)


def variances(architecture: Architecture, images: Tensor) -> list[Tensor]:
    r"""The variance of every place before each nonlinearity, ``(H, W, N)`` of each.

    Without pooling they follow from each other: kernels say what becomes of a variance, and a
    convolution averages :math:`\Sigma(s + d, s + d)`. A pooling needs the covariances of the
    image's places with one another, so that the image is sent through the layers below it once,
    paired with itself.
    """
    features = Features.of(architecture, images)
    variance, slabs = features.maps(features, matched=True)[:, :, 0], features.slabs(features)
    found: list[Tensor] = []

    def activate(kernel: Kernel, maps: Tensor) -> Tensor:
        found.append(maps)
        return kernel.variance(maps)

    layers, rest = architecture.stages
    stage: list[Layer] = []
    for layer in (*layers, *rest):
        stage.append(layer)
        if isinstance(layer, AveragePool):
            known = len(found)
            stream.through(stage[:-1], variance, activate)
            sides = ((Side.of(maps[:, :, None, None]), Side.of(maps)) for maps in found[known:])
            whole = list(stream.run(stage, slabs, sides))
            variance, slabs, stage = stream.diagonal_of(whole), iter(whole), []
    stream.through(stage, variance, activate)
    return found


def steps(count: int, size: int) -> Iterator[slice]:
    """Slices of ``size`` of so many images, the last one maybe shorter."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def pairs_within(rows: slice, columns: slice) -> int:
    """The entries of a part of a symmetric matrix that are on its diagonal or above it."""
    below = range(max(0, rows.start - columns.start), rows.stop - columns.start)
    return (rows.stop - rows.start) * (columns.stop - columns.start) - sum(below)

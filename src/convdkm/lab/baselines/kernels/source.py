r"""Where streams of slabs begin: products of the patches of two sides' images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from convdkm.exact import Convolution
from convdkm.kernels import Kernel
from convdkm.lab.baselines.kernels.layers import Architecture, Layer, nonlinearities, side_of
from convdkm.lab.baselines.kernels.stream import Slabs
from convdkm.layers import AveragePool, Flatten

Space = tuple[int, int]


@dataclass(frozen=True)
class Features:
    r"""Vectors of each place whose products, plus ``bias``, are the first covariance.

    Where the first layer is a convolution they are patches times
    :math:`\sqrt{\sigma_w^2 / (C D)}`, and the bias its :math:`\sigma_b^2`; else they are pixels
    over :math:`\sqrt C`, and there is none.

    Attributes:
        vectors: ``(N, K, S)``.
        bias: added to every product.
        space: the grid of S places.
    """

    vectors: Tensor
    bias: float
    space: Space

    @classmethod
    def of(cls, architecture: Architecture, images: Tensor) -> Features:
        """Of images ``(N, C, H, W)``."""
        space = (images.shape[2], images.shape[3])
        first = architecture.layers[0] if architecture.layers else None
        if isinstance(first, Convolution):
            patches = F.unfold(images, side_of(first), padding=side_of(first) // 2)
            scale = (first.weight_variance / patches.shape[1]) ** 0.5
            return cls(patches * scale, first.bias_variance, space)
        return cls(images.flatten(2) * images.shape[1] ** -0.5, 0.0, space)

    @property
    def variance(self) -> Tensor:
        """Of every place, ``(N, H, W)``."""
        return self.vectors.square().sum(1).add_(self.bias).unflatten(1, self.space)

    @cached_property
    def innermost(self) -> Tensor:
        """The vectors with images innermost, ``(K, S·N)``."""
        return self.vectors.permute(1, 2, 0).flatten(1).contiguous()

    @cached_property
    def by_place(self) -> Tensor:
        """The vectors by place, ``(S, K, N)``."""
        return self.vectors.permute(2, 1, 0).contiguous()


def apart(left: Features, index: int, right: Features) -> Slabs:
    """Products of the places of one left image with those of all right ones."""
    height, width = left.space
    places = left.vectors[index].T
    for row in range(height):
        slab = places[row * width : (row + 1) * width] @ right.innermost
        yield _plus(slab, left.bias).reshape(width, height, width, -1)


def together(left: Features, right: Features) -> Slabs:
    """Products of each place of every left image with that same place of every right one."""
    height, width = left.space
    for row in range(height):
        part = slice(row * width, (row + 1) * width)
        yield _plus(left.by_place[part].mT @ right.by_place[part], left.bias)


def matched_apart(left: Features, right: Features) -> Slabs:
    """Products of all places of each left image with those of the right one of its number."""
    height, width = left.space
    for row in range(height):
        part = left.vectors[:, :, row * width : (row + 1) * width]
        slab = torch.einsum("nkw,nks->wsn", part, right.vectors).contiguous()
        yield _plus(slab, left.bias).unflatten(1, left.space)


def matched_together(left: Features, right: Features) -> Slabs:
    """Products of each place of each left image with that of the right one of its number."""
    values = _plus((left.vectors * right.vectors).sum(1), left.bias).T.contiguous()
    yield from values.unflatten(0, left.space)[:, :, None, :].unbind(0)


def _plus(slab: Tensor, bias: float) -> Tensor:
    return slab.add_(bias) if bias else slab


@dataclass(frozen=True)
class Course:
    """The layers above the features, cut where pairs of different places stop to matter.

    Convolutions move both places alike, so that below :class:`Flatten` they never leave the
    diagonal s' = s; pooling mixes places, and everything up to the last one needs all pairs.

    Attributes:
        apart: layers that work on all pairs of places; empty where none needs them.
        together: layers that work on s' = s.
        pairs: whether anything, be it the top, needs pairs of different places.
        draws: the first kind is followed by the second.
    """

    apart: tuple[Layer, ...]
    together: tuple[Layer, ...]
    pairs: bool
    draws: bool

    @classmethod
    def of(cls, architecture: Architecture) -> Course:
        """Of a whole architecture."""
        layers = architecture.layers
        skipped = 1 if layers and isinstance(layers[0], Convolution) else 0
        if not isinstance(architecture.top, Flatten):
            return cls(layers[skipped:], (), pairs=True, draws=False)
        pools = [i + 1 for i, layer in enumerate(layers) if isinstance(layer, AveragePool)]
        cut = max([skipped, *pools])
        return cls(layers[skipped:cut], layers[cut:], pairs=bool(pools), draws=bool(pools))

    def nonlinearities_apart(self) -> Iterator[Kernel]:
        """Those that work on all pairs of places."""
        return nonlinearities(self.apart)

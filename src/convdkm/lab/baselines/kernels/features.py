r"""Where covariances begin: products of the patches of two sides' images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from convdkm.lab.baselines.kernels.layers import Architecture, side_of
from convdkm.lab.baselines.kernels.stream import Slabs


@dataclass(frozen=True)
class Features:
    r"""Vectors of each place whose products, plus ``bias``, are the first covariance.

    Where the first layer is a convolution they are patches times
    :math:`\sqrt{\sigma_w^2 / (C D)}`, and the bias its :math:`\sigma_b^2`; else they are pixels
    over :math:`\sqrt C`, and there is none.

    Attributes:
        vectors: ``(N, K, S)``.
        bias: added to every product.
        space: the grid ``(H, W)`` of the S places.
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

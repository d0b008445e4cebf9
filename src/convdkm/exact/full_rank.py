r"""Covariances of whole images in a machine whose Gram matrices are learned, layer by layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from convdkm.errors import GramError, InvalidInputError
from convdkm.exact.layers import LearnedGram
from convdkm.exact.spatial import SpatialGram
from convdkm.gram import Gram
from convdkm.layers import GramLayer, Plan


@dataclass(frozen=True, eq=False)
class FullRankGram(SpatialGram):
    r"""Covariances between images and the training images, which take the part of inducing points.

    Where both sides are the training images (``same``), a Gram layer puts its learned G in the
    place of the kernel K, and its plan among ``plans``. With those, new images on the left are
    predicted from the training images: with i all places of these and t those of new images

    .. math::
        G_{ti} &= K_{ti} K_{ii}^{-1} G_{ii}, \\
        G_{tt'} &= K_{tt'} - K_{ti} K_{ii}^{-1} (K_{ii} - G_{ii}) K_{ii}^{-1} K_{it'},

    the latter for all places t and t' of one image.

    Attributes:
        plans: what every Gram layer has worked out at the training images, by layer.
    """

    plans: dict[GramLayer, Plan] = field(default_factory=dict)

    def learned(self, layer: GramLayer | LearnedGram) -> SpatialGram:
        if isinstance(layer, LearnedGram):
            raise GramError("a LearnedGram has no matrix before it is part of a FullRankDKM")
        return self._at_training(layer) if self.same else self._predicted(self.plans[layer])

    def _at_training(self, layer: GramLayer) -> SpatialGram:
        kernel = self.matrix()
        if layer.num_inducing != len(kernel):
            images, places = len(self.cross), math.prod(self.space)
            raise GramError(
                f"this Gram layer is made for a matrix of {layer.num_inducing} rows, but"
                f" {images} training images of {places} places each have {len(kernel)}; use"
                f" LearnedGram(), which is given its size, or GramLayer({len(kernel)})"
            )
        self.plans[layer] = plan = self._plan(layer, kernel)
        own = self._inside(plan.ii)
        return replace(self, cross=self.blocks(plan.ii), left=own, right=own, gaussian=True)

    def _plan(self, layer: GramLayer, kernel: Tensor) -> Plan:
        return layer.plan(kernel)

    def _predicted(self, plan: Plan) -> SpatialGram:
        cross, images = self.matrix(), len(self.left)
        it, tt = plan.data(cross, self.left_variances.flatten())
        # Places are what images are to a plan, which knows of covariances at one place only.
        places = cross.unflatten(0, (images, -1)).permute(1, 2, 0)
        blocks = places, self.left_variances.reshape(images, -1).T
        between = self.left.reshape(images, len(places), -1).permute(1, 2, 0)
        own = plan.covariance(blocks, blocks, between).permute(2, 0, 1)
        own = torch.diagonal_scatter(own, tt.reshape(images, -1), dim1=1, dim2=2)
        return replace(
            self,
            cross=self.blocks(it),
            left=own.reshape(self.left.shape),
            right=self._inside(plan.ii),
            gaussian=True,
        )

    def _inside(self, matrix: Tensor) -> Tensor:
        """Covariances inside each training image, in the shape of ``right``, from all of them."""
        images, places = len(self.right), math.prod(self.space)
        blocks = matrix.reshape(images, places, images, places).diagonal(dim1=0, dim2=2)
        return blocks.movedim(2, 0).reshape(self.right.shape)


class StartingGram(FullRankGram):
    """Sets every Gram layer to where it starts."""

    def _plan(self, layer: GramLayer, kernel: Tensor) -> Plan:
        layer.initialise(Gram(kernel, kernel[:0], kernel[:0, 0]))
        return layer.plan(kernel)


@dataclass(frozen=True, eq=False)
class GramSizes(SpatialGram):
    """Follows the shapes of covariances, of tensors that need hold nothing (``device="meta"``).

    Attributes:
        entries: numbers in every matrix that was made, one layer after the other.
        sizes: rows of the learned matrix of every Gram layer.
    """

    entries: list[int] = field(default_factory=list)
    sizes: dict[GramLayer | LearnedGram, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.entries.append(self.cross.numel())

    def learned(self, layer: GramLayer | LearnedGram) -> SpatialGram:
        if layer in self.sizes:
            raise InvalidInputError(
                "the same Gram layer stands in two places of the machine, but each place learns a"
                " matrix of its own; make two layers"
            )
        if isinstance(layer, GramLayer) and layer.sample is not None:
            raise InvalidInputError(
                "the matrices of a FullRankDKM are not sampled; use Gram layers without samples"
            )
        self.sizes[layer] = len(self.cross) * math.prod(self.space)
        return replace(self, gaussian=True)

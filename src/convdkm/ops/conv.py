r"""Linear operations: the convolution, the mixing of inducing points, the first Gram, whitening."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from convdkm.choices import Border
from convdkm.gram import INDUCING_DTYPE
from convdkm.numerics import inner_products, mix
from convdkm.ops.base import Blocks, Operation, Plan, part
from convdkm.ops.inducing import weights_of_data
from convdkm.ops.norm import NormPlan
from convdkm.ops.window import Window
from convdkm.runtime.maps import mean_squares


def window_covariance(window: Window, between: Tensor, border: Border) -> Tensor:
    """Means over windows of covariances between images, ``(N1, N2, *space)``."""
    return window.mean(between.flatten(0, 1), border).unflatten(0, between.shape[:2])


class ConvPlan(Plan):
    """Convolves ``it`` and averages ``tt``; a fused normalisation scales both.

    The weights are a product ``left · C · right · times``, made when they are needed, so that
    scalar factors are multiplied with the small ``left``.

    Attributes:
        mixing: C, ``(Q, P, *size)``.
        right: what the incoming points are multiplied by before; None for the identity.
        window, border: the geometry, see :class:`convdkm.Conv`.
        times: one over the number of places; one once the weights are constants, in ``mixing``.
        left: what the operation after has given away, a matrix, a diagonal or a scalar; None for
            the identity.
        norm: the normalisation that comes after, if it multiplies the data by a scalar.
        factor: what ``tt`` is multiplied by besides; one if not given.
    """

    last = "left"
    added = ("right",)
    left: Tensor | None
    right: Tensor | None
    norm: NormPlan | None
    factor: Tensor | None

    def __init__(
        self,
        ii: Tensor,
        mixing: Tensor,
        window: Window,
        border: Border,
        right: Tensor | None = None,
    ) -> None:
        super().__init__(ii)
        self.mixing, self.window, self.border, self.right = mixing, window, border, right
        self.times = 1 / window.count
        self.left, self.norm, self.factor = None, None, None

    @property
    def coefficients(self) -> Tensor:
        """``C · right``."""
        if self.right is None:
            return self.mixing
        return weights_of_data(None, self.mixing, self.right, None, 1.0, INDUCING_DTYPE)

    @property
    def weight(self) -> Tensor:
        """The weights that ``it`` is convolved with, but for the normalisation."""
        return self._weight(INDUCING_DTYPE, None)

    def _weight(self, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
        left = self.left
        if left is None and self.right is None and scale is None and self.times == 1:
            return self.mixing.to(dtype)
        if left is not None and not left.ndim:
            scale = left if scale is None else left * scale
            left = None
        elif left is not None and left.ndim == 1:
            left = left.diag()
        return weights_of_data(left, self.mixing, self.right, scale, self.times, dtype)

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        weight, tt = self.scaled(tt, it.dtype)
        return self.window.convolve(it, weight).to(it.dtype), tt

    def covariance(self, left: Blocks, right: Blocks, between: Tensor) -> Tensor:
        return window_covariance(self.window, between, self.border)

    def scaled(
        self, tt: Tensor, dtype: torch.dtype, slope: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The weights ``· slope``, and the outgoing variances, both normalised."""
        tt = self.window.mean(tt, self.border)
        tt = tt if self.factor is None else tt * self.factor
        scale: Tensor | None = None
        if self.norm is not None:
            with part(1):
                scale = self.norm.norm.shared_factor(tt)
        if scale is None:
            return self._weight(dtype, slope), tt
        wide = scale.to(INDUCING_DTYPE)
        factor = wide if slope is None else slope * wide
        return self._weight(dtype, factor), tt * scale.square()

    def thinned(self) -> tuple[Sequence[int], ConvPlan] | None:
        window = self.window
        if not window.is_point or set(window.stride) == {1}:
            return None
        return window.stride, self.but(window=replace(window, stride=(1,) * window.ndim))

    def constant_scale(self) -> Tensor | None:
        """The factor of a normalisation that is constant; None if it is one."""
        with part(1):
            return None if self.norm is None else self.norm.constant_scale()

    def frozen(self, **changes: Any) -> Operation:
        changes = {"mixing": self.coefficients, "right": None, **changes}
        if self.norm is None or self.norm.is_constant:
            scale = self.constant_scale()
            changes |= {"left": None, "norm": None, "times": 1.0}
            changes["mixing"] = self._weight(INDUCING_DTYPE, scale)
            if scale is not None:
                changes["factor"] = scale.square()
        return super().frozen(**changes)


class MixPlan(Plan):
    """``it ← matrix · it``; the variances pass through."""

    last = "matrix"

    def __init__(self, ii: Tensor, matrix: Tensor) -> None:
        super().__init__(ii)
        self.matrix = matrix

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        return mix(self.matrix, it), tt

    def covariance(self, left: Blocks, right: Blocks, between: Tensor) -> Tensor:
        return between


class PatchesPlan(Operation):
    """The first data blocks from images: the Gram of their patches with inducing patches.

    Attributes:
        weight: inducing patches over the number of their entries, ``(P, channels, *size)``.
        window, border: the geometry, see :class:`convdkm.PatchInput`.
    """

    def __init__(self, weight: Tensor, window: Window, border: Border) -> None:
        self.weight, self.window, self.border = weight, window, border

    def data(self, inputs: Tensor) -> Blocks:
        it = self.window.convolve(inputs, self.weight.to(inputs.dtype))
        return it, self.window.mean(mean_squares(inputs), self.border)

    def covariance(self, left: Tensor, right: Tensor) -> Tensor:
        """The first covariances between images at the same place."""
        products = inner_products(left, right) / left.shape[1]
        return window_covariance(self.window, products, self.border)


class VectorsPlan(Operation):
    """The first data blocks from vectors.

    Attributes:
        weight: inducing vectors over their length, ``(P, features)``, times ``relevance``.
        relevance: what the product of a feature counts, ``(features,)``; one if not given.
    """

    added = ("relevance",)
    relevance: Tensor | None

    def __init__(self, weight: Tensor, relevance: Tensor | None = None) -> None:
        self.weight, self.relevance = weight, relevance

    def data(self, inputs: Tensor) -> Blocks:
        squares = self._counted(inputs.square()).mean(1)
        return inputs @ self.weight.T.to(inputs.dtype), squares

    def covariance(self, left: Tensor, right: Tensor) -> Tensor:
        """The first covariances between vectors."""
        return self._counted(left) @ right.T / left.shape[1]

    def _counted(self, values: Tensor) -> Tensor:
        return values if self.relevance is None else values * self.relevance.to(values.dtype)


class ImageScaling(Operation):
    """Every channel scaled and shifted: ``factor · x + offset``, both ``(channels,)``."""

    def __init__(self, factor: Tensor, offset: Tensor) -> None:
        self.factor, self.offset = factor, offset

    def forward(self, images: Tensor) -> Tensor:
        shape = (-1, *(1,) * (images.ndim - 2))
        return images * self.factor.reshape(shape) + self.offset.reshape(shape)


class ImageMap(Operation):
    """A linear map of whole images: ``(x − mean) · matrix``."""

    def __init__(self, mean: Tensor, matrix: Tensor) -> None:
        self.mean, self.matrix = mean, matrix

    def forward(self, images: Tensor) -> Tensor:
        return ((images.flatten(1) - self.mean) @ self.matrix).reshape(images.shape)

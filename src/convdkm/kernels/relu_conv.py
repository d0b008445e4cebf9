r"""The arc-cosine kernel of order 1 and the convolution after it, as one operation."""

from __future__ import annotations

import math

from torch import Tensor

from convdkm.elementwise import PIECEWISE, Engine
from convdkm.gram import INDUCING_DTYPE
from convdkm.kernels.pointwise import PointwiseGradient, pointwise_convolution
from convdkm.layers.window import Window
from convdkm.scalars import as_tensor, scalar


class ReluPointwise:
    r""":math:`\kappa + \pi\sigma_b^2/\sigma_w^2`, see :class:`convdkm.kernels.pointwise.Pointwise`.

    Args:
        slope: :math:`\sigma_w^2`, ``()``; one if not given.
        offset: :math:`\sigma_b^2`, ``()``; zero if not given.
        engine: who works out κ.
    """

    def __init__(
        self, slope: Tensor | None = None, offset: Tensor | None = None, engine: Engine = PIECEWISE
    ) -> None:
        self.parameters: tuple[Tensor | None, ...] = (slope, offset)
        self.engine = engine
        self.slope = 1.0 if slope is None else scalar(slope.detach())
        self.shift = None if offset is None else math.pi * scalar(offset.detach()) / self.slope

    def value(self, cross: Tensor, inducing: Tensor, own: Tensor) -> Tensor:
        shift = None if self.shift is None else as_tensor(self.shift, cross)
        return self.engine.relu(cross, inducing, own, shift)

    def gradient(
        self, grad: Tensor, value: Tensor, blocks: tuple[Tensor, Tensor, Tensor], *, learned: bool
    ) -> PointwiseGradient:
        found = self.engine.relu_gradient(grad, *blocks)
        by_slope = by_offset = None
        if self.shift is not None and learned:
            by_shift = scalar(found.offset)
            like = found.offset.to(INDUCING_DTYPE)
            by_slope = as_tensor(-by_shift * self.shift / self.slope, like)
            by_offset = as_tensor(math.pi * by_shift / self.slope, like)
        return PointwiseGradient(*found[:3], (by_slope, by_offset))


def relu_convolution(
    cross: Tensor,
    inducing: Tensor,
    own: Tensor,
    weight: Tensor,
    *,
    slope: Tensor | None = None,
    offset: Tensor | None = None,
    window: Window,
    engine: Engine = PIECEWISE,
) -> Tensor:
    r"""Convolve :math:`\kappa + \pi\sigma_b^2/\sigma_w^2` of a Gram's blocks with ``weight``."""
    pointwise = ReluPointwise(slope, offset, engine)
    return pointwise_convolution(pointwise, cross, inducing, own, weight, window=window)

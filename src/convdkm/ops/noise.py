"""White noise: a little variance of every point's own."""

from __future__ import annotations

from torch import Tensor

from convdkm.ops.base import Blocks, Plan
from convdkm.ops.inducing import noisy
from convdkm.ops.scalars import affine


class NoisePlan(Plan):
    """Adds to the variances; the covariances pass through."""

    def __init__(self, ii: Tensor, relative: float, absolute: float) -> None:
        super().__init__(noisy(ii, relative, absolute))
        self.relative, self.absolute = relative, absolute

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        return it, self.variance(tt)

    def covariance(self, left: Blocks, right: Blocks, between: Tensor) -> Tensor:
        return between

    def variance(self, tt: Tensor) -> Tensor:
        """The variances with the noise."""
        return affine(tt, 1 + self.relative, self.absolute)

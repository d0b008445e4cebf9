"""White noise: a little variance of every point's own."""

from __future__ import annotations

from torch import Tensor

from convdkm.errors import InvalidInputError
from convdkm.layers.base import Layer
from convdkm.ops.base import Plan
from convdkm.ops.noise import NoisePlan


class Noise(Layer):
    r"""Adds to each point an independent noise of variance :math:`\epsilon_r G_{xx} + \epsilon_a`.

    The diagonal of :math:`G_{ii}` and :math:`g_{tt}` grow; no covariance changes. The published
    runs put such a jitter of 1e-4 (both) before and after every kernel; the construction used here
    does without.
    """

    def __init__(self, relative: float = 1e-4, absolute: float = 1e-4) -> None:
        super().__init__()
        if not (relative >= 0 and absolute >= 0):
            raise InvalidInputError(
                f"the variance of a noise is not negative, got {relative} and {absolute}"
            )
        self.relative, self.absolute = relative, absolute

    def plan(self, ii: Tensor) -> Plan:
        return NoisePlan(ii, self.relative, self.absolute)

    def extra_repr(self) -> str:
        return f"relative={self.relative:g}, absolute={self.absolute:g}"

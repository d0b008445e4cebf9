"""White noise: a little independent variance at every point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from convdkm.errors import InvalidInputError
from convdkm.layers.base import Layer
from convdkm.ops.base import Plan
from convdkm.ops.kernel import KernelPlan, NoisePlan

if TYPE_CHECKING:
    from convdkm.kernels import Kernel


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


class Jitter(Layer):
    r"""A kernel of noisy points, while the variances of images are without the noise.

    The noise of variance :math:`\epsilon_r G_{xx} + \epsilon_a` raises the diagonal of
    :math:`G_{ii}` and the variances that the kernel between inducing points and images is worked
    out from; :math:`k_{tt}` is that of the incoming :math:`g_{tt}`. The published runs have it
    before every kernel, where ``Sequential(Noise(), kernel)`` would raise :math:`k_{tt}` too. The
    result is a Gram up to the size of the noise only: a covariance may exceed what
    :math:`k_{tt}` allows.

    Args:
        kernel: the kernel.
        relative, absolute: as in :class:`Noise`.
    """

    def __init__(self, kernel: Kernel, relative: float = 1e-4, absolute: float = 1e-4) -> None:
        super().__init__()
        self.noise, self.kernel = Noise(relative, absolute), kernel

    def plan(self, ii: Tensor) -> Plan:
        jitter = self.noise.relative, self.noise.absolute
        return KernelPlan(self.kernel, ii, joins=self.kernel.is_written_out, jitter=jitter)

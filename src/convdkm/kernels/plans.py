"""What a kernel does to a Gram, alone and together with the noise and the convolution after it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from convdkm.kernels.pointwise import convolved, inside
from convdkm.layers.base import Plan
from convdkm.layers.conv import ConvPlan, window_variance
from convdkm.layers.noise import NoisePlan

if TYPE_CHECKING:
    from convdkm.kernels.base import Kernel


class KernelPlan(Plan):
    """The kernel of every entry: the diagonal by :meth:`Kernel.variance`, the rest by ``of``."""

    def __init__(self, kernel: Kernel, ii: Tensor) -> None:
        self.kernel = kernel
        self.inducing = ii.diagonal()
        value = torch.diagonal_scatter(self.between(ii), kernel.variance(self.inducing))
        super().__init__(value)

    def between(self, ii: Tensor) -> Tensor:
        """The kernel between different inducing points."""
        own = self.inducing
        value = self.kernel.of(ii, own[:, None], own[None, :])
        return 0.5 * (value + value.T)

    def data(self, it: Tensor, tt: Tensor) -> tuple[Tensor, Tensor]:
        inducing = self.inducing.to(it.dtype).reshape(-1, *(1,) * (it.ndim - 2))
        return self.kernel.of(it, inducing, tt.unsqueeze(1)), self.kernel.variance(tt)


class FusedPlan(KernelPlan):
    """A kernel whose derivatives are written out, and white noise after it.

    It joins the convolution that follows.
    """

    def __init__(self, kernel: Kernel, ii: Tensor) -> None:
        super().__init__(kernel, ii)
        self.noises: tuple[NoisePlan, ...] = ()

    def between(self, ii: Tensor) -> Tensor:
        return self.kernel.scaled(inside(self.kernel, ii))

    def data(self, it: Tensor, tt: Tensor) -> tuple[Tensor, Tensor]:
        return super().data(it, tt)[0], self.variance(tt)

    def variance(self, tt: Tensor) -> Tensor:
        """The outgoing variances, noise included."""
        tt = self.kernel.variance(tt)
        for noise in self.noises:
            tt = noise.variance(tt)
        return tt

    def joined(self, after: Plan) -> Plan | None:
        if type(after) is NoisePlan:
            noisier = copy.copy(self)
            noisier.ii, noisier.noises = after.ii, (*self.noises, after)
            return noisier
        if type(after) is ConvPlan and after.window.is_symmetric and not after.window.is_point:
            return FusedConvPlan(self, after)
        return None


class FusedConvPlan(Plan):
    r"""A kernel and a convolution in one operation.

    The convolution of ``slope · core + offset`` by C is that of ``core + offset/slope`` by
    ``slope · C``.
    """

    def __init__(self, front: FusedPlan, conv: ConvPlan) -> None:
        super().__init__(conv.ii)
        self.front, self.conv = front, conv

    def data(self, it: Tensor, tt: Tensor) -> tuple[Tensor, Tensor]:
        conv, front = self.conv, self.front
        slope, offset = (None if each is None else each(self.ii) for each in front.kernel.factors())
        shift = offset if slope is None or offset is None else offset / slope
        own = window_variance(conv.window, front.variance(tt), conv.border)
        weight, own = conv.scaled(own, it.dtype, slope=slope)
        conv.window.require_space(it.shape[2:])
        shift = None if shift is None else shift.to(it.dtype)
        blocks = (it, front.inducing, tt)
        return convolved(front.kernel, conv.window, blocks, weight, shift), own

    def premultiplied(self, matrix: Tensor) -> Plan:
        return FusedConvPlan(self.front, self.conv.premultiplied(matrix))

    def joined(self, after: Plan) -> Plan | None:
        conv = self.conv.joined(after)
        return None if conv is None else FusedConvPlan(self.front, conv)

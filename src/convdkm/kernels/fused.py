"""Kernels that work together with the noise and the convolution after them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from convdkm.gram import INDUCING_DTYPE
from convdkm.kernels.base import Kernel, KernelPlan
from convdkm.kernels.pointwise import Pointwise, pointwise_convolution
from convdkm.layers.base import Plan
from convdkm.layers.conv import ConvPlan, window_variance
from convdkm.layers.noise import NoisePlan
from convdkm.scalars import affine, as_tensor, scalar


class FusedPlan(KernelPlan):
    r"""A kernel with :math:`k(x, x) = \sigma_w^2 G_{xx} + \sigma_b^2`, and white noise after it.

    It joins the convolution that follows. Define :meth:`pointwise`.

    Attributes:
        slope, offset: the two variances, None where the kernel does not have them.
        times: what the kernel is of :meth:`pointwise`, besides ``slope``.
        noises: what the layers of noise after it add to the variances.
    """

    times = 1.0

    def __init__(
        self, kernel: Kernel, ii: Tensor, slope: Tensor | None = None, offset: Tensor | None = None
    ) -> None:
        self.slope, self.offset = slope, offset
        super().__init__(kernel, ii)
        self.noises: tuple[NoisePlan, ...] = ()

    def pointwise(self) -> Pointwise:
        """The kernel of rows."""
        raise NotImplementedError(f"{type(self).__name__} must define pointwise()")

    def data(self, it: Tensor, tt: Tensor) -> tuple[Tensor, Tensor]:
        return super().data(it, tt)[0], self.variance(tt)

    def variance(self, tt: Tensor) -> Tensor:
        """The outgoing variances, noise included."""
        gain, lift = 1.0, 0.0
        for noise in self.noises:
            gain *= 1 + noise.relative
            lift = (1 + noise.relative) * lift + noise.absolute
        if self.slope is None and self.offset is None and (gain, lift) == (1.0, 0.0):
            return tt
        result: Tensor = _Affine.apply(tt, self.slope, self.offset, gain, lift)
        return result

    def joined(self, after: Plan) -> Plan | None:
        if type(after) is NoisePlan:
            noisier = copy.copy(self)
            noisier.ii, noisier.noises = after.ii, (*self.noises, after)
            return noisier
        if type(after) is ConvPlan and after.window.is_symmetric and not after.window.is_point:
            return FusedConvPlan(self, after)
        return None


class FusedConvPlan(Plan):
    """A kernel and a convolution in one operation."""

    def __init__(self, front: FusedPlan, conv: ConvPlan) -> None:
        super().__init__(conv.ii)
        self.front, self.conv = front, conv

    def data(self, it: Tensor, tt: Tensor) -> tuple[Tensor, Tensor]:
        conv, front = self.conv, self.front
        own = window_variance(conv.window, front.variance(tt), conv.border)
        weight, own = conv.scaled(own, it.dtype, slope=front.slope, times=front.times)
        conv.window.require_space(it.shape[2:])
        result = pointwise_convolution(
            front.pointwise(), it, front.inducing, tt, weight, window=conv.window
        )
        return result, own

    def premultiplied(self, matrix: Tensor) -> Plan:
        return FusedConvPlan(self.front, self.conv.premultiplied(matrix))

    def joined(self, after: Plan) -> Plan | None:
        conv = self.conv.joined(after)
        return None if conv is None else FusedConvPlan(self.front, conv)


class _Affine(torch.autograd.Function):
    """``gain · (slope · tt + offset) + lift``."""

    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        tt: Tensor,
        slope: Tensor | None,
        offset: Tensor | None,
        gain: float,
        lift: float,
    ) -> Tensor:
        ctx.slope, ctx.gain = gain * (1.0 if slope is None else scalar(slope)), gain
        ctx.save_for_backward(tt, slope)
        return affine(tt, ctx.slope, lift + (0.0 if offset is None else gain * scalar(offset)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        tt, slope = ctx.saved_tensors
        by_slope = by_offset = None
        if ctx.needs_input_grad[1]:
            by_slope = as_tensor(ctx.gain * scalar((grad * tt).sum()), slope)
        if ctx.needs_input_grad[2]:
            by_offset = (ctx.gain * grad.sum()).to(INDUCING_DTYPE)
        return grad * ctx.slope, by_slope, by_offset, None, None

"""What a kernel does to a Gram, alone and together with the noise and the convolution after it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from convdkm.ops.base import Blocks, Operation, Plan, part
from convdkm.ops.conv import ConvPlan
from convdkm.ops.scalars import affine


class KernelPlan(Plan):
    """The kernel of every entry, and white noise after it.

    Attributes:
        kernel: a :class:`convdkm.Kernel`.
        inducing: the diagonal of the incoming inducing block, ``(P,)``; or one number, if it is the
            same for all.
        noises: relative and absolute variances of the noises.
        joins: whether the convolution that follows is to be done in one go.
    """

    def __init__(self, kernel: Any, ii: Tensor, *, joins: bool = False) -> None:
        self.kernel, self.joins = kernel, joins
        self.inducing = ii.diagonal()
        self.noises: tuple[tuple[float, float], ...] = ()
        value = torch.diagonal_scatter(kernel.between(ii), kernel.variance(self.inducing))
        super().__init__(value)

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        return self.kernel.of_map(it, self.inducing, tt), self.variance(tt)

    def variance(self, tt: Tensor) -> Tensor:
        """The outgoing variances, noise included."""
        tt = self.kernel.variance(tt)
        for relative, absolute in self.noises:
            tt = affine(tt, 1 + relative, absolute)
        return tt


class KernelConvPlan(Plan):
    r"""A kernel and a convolution in one operation.

    The convolution of ``slope · core + offset`` by C is that of ``core + offset/slope`` by
    ``slope · C``.

    Attributes:
        kernel, conv: the two.
        shift: ``offset/slope``, a number or ``(P,)``, once it is constant and the slope is part of
            the convolution's weights.
    """

    shift: Tensor | None

    def __init__(self, kernel: KernelPlan, conv: ConvPlan) -> None:
        super().__init__(conv.ii)
        self.kernel, self.conv, self.shift = kernel, conv, None

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        conv, kernel, slope, shift = self.conv, self.kernel, None, self.shift
        if conv.times != 1:
            slope, shift = self._slope_and_shift()
        own = kernel.variance(tt)
        with part(1 + len(kernel.noises)):
            weight, own = conv.scaled(own, it.dtype, slope)
            conv.window.require_space(it.shape[2:])
        shift = None if shift is None else shift.to(it.dtype)
        blocks = (it, kernel.inducing, tt)
        return kernel.kernel.convolved(conv.window, blocks, weight, shift), own

    def _slope_and_shift(self) -> tuple[Tensor | None, Tensor | None]:
        """What the kernel's core is multiplied by, and what is added to it before."""
        like = self.kernel.inducing
        slope, offset = (
            None if each is None else each(like) for each in self.kernel.kernel.factors()
        )
        return slope, offset if slope is None or offset is None else offset / slope

    def premultiplied(self, matrix: Tensor) -> KernelConvPlan:
        return self.but(conv=self.conv.premultiplied(matrix))

    def constant(self) -> tuple[Tensor | None, Operation]:
        r"""Constants, and a matrix that ``it`` is to be multiplied by before.

        A kernel that grows as its inputs do takes inducing points of norm one: those that it has
        are divided by their norms, which the convolution's weights take over.
        """
        kernel, conv = self.kernel, self.conv
        if conv.norm is not None and not conv.norm.is_constant:
            return None, self.frozen()
        slope, shift = self._slope_and_shift()
        weight = conv.mixing if slope is None else conv.mixing * slope
        norms = None
        if kernel.kernel.grows_with_norm and bool((kernel.inducing > 0).all()):
            norms = kernel.inducing.sqrt()
            weight = weight * norms.reshape(-1, *(1,) * conv.window.ndim)
            shift = None if shift is None else shift / norms
            kernel = kernel.but(inducing=torch.ones_like(norms[0]))
        changes = {"kernel": kernel, "shift": shift, "conv": conv.but(mixing=weight).frozen()}
        return None if norms is None else norms.reciprocal(), super().frozen(**changes)

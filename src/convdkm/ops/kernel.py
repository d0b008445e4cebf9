"""Kernels and white noise, alone and together with the convolution after them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from convdkm.ops.base import Blocks, Operation, Plan, part
from convdkm.ops.conv import ConvPlan
from convdkm.ops.inducing import noisy
from convdkm.ops.scalars import affine

Variances = tuple[float, float]
"""The relative and the absolute variance of a noise."""


class NoisePlan(Plan):
    """Adds white noise to the variances; the covariances pass through."""

    def __init__(self, ii: Tensor, relative: float, absolute: float) -> None:
        super().__init__(noisy(ii, relative, absolute))
        self.relative, self.absolute = relative, absolute

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        return it, affine(tt, 1 + self.relative, self.absolute)

    def covariance(self, left: Blocks, right: Blocks, between: Tensor) -> Tensor:
        return between


class KernelPlan(Plan):
    """The kernel of every entry, and white noise after it.

    Attributes:
        kernel: a :class:`convdkm.Kernel`.
        inducing: the diagonal of the incoming inducing block, ``(P,)``; None where it is one.
        noises: relative and absolute variances of the noises.
        jitter: relative and absolute variance of a noise that the angles are those of, while the
            variances of images are without it; None for none.
        joins: whether the convolution that follows is to be done in one go.
    """

    inducing: Tensor | None
    added = ("jitter",)
    jitter: Variances | None

    def __init__(
        self, kernel: Any, ii: Tensor, *, joins: bool = False, jitter: Variances | None = None
    ) -> None:
        if jitter is not None:
            ii = noisy(ii, *jitter)
        inducing = ii.diagonal()
        super().__init__(torch.diagonal_scatter(kernel.between(ii), kernel.variance(inducing)))
        self.kernel, self.joins, self.inducing = kernel, joins, inducing
        self.noises: tuple[Variances, ...] = ()
        self.jitter = jitter

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        return self.kernel.of_map(it, self.inducing, self.jittered(tt)), self.variance(tt)

    def covariance(self, left: Blocks, right: Blocks, between: Tensor) -> Tensor:
        one, other = (self.jittered(tt) for _, tt in (left, right))
        found: Tensor = self.kernel.of(between, one.unsqueeze(1), other.unsqueeze(0))
        return found

    def jittered(self, tt: Tensor) -> Tensor:
        """The variances that the angles are those of."""
        return tt if self.jitter is None else affine(tt, 1 + self.jitter[0], self.jitter[1])

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
        is_scaled: whether the slope is part of the convolution's weights, once all is constant.
        shift: ``offset/slope`` then, a scalar or ``(P,)``.
        slope, intercept: of the variances that are averaged as a function of the incoming ones,
            where it is known to be a straight line.
    """

    shift: Tensor | None
    slope: Tensor | None
    intercept: Tensor | None

    def __init__(self, kernel: KernelPlan, conv: ConvPlan) -> None:
        super().__init__(conv.ii)
        self.kernel, self.conv = kernel, conv
        self.is_scaled, self.shift = False, None
        self.slope, self.intercept = None, None

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        conv, kernel = self.conv, self.kernel
        scale, shift = (None, self.shift) if self.is_scaled else self._scale_and_shift()
        if self.slope is None or self.intercept is None:
            variance = kernel.variance(tt)
        else:
            variance = torch.addcmul(self.intercept, tt, self.slope)
        with part(1 + len(kernel.noises)):
            weight, variance = conv.scaled(variance, it.dtype, scale)
            conv.window.require_space(it.shape[2:])
        shift = None if shift is None else shift.to(it.dtype)
        blocks = (it, kernel.inducing, kernel.jittered(tt))
        return kernel.kernel.convolved(conv.window, blocks, weight, shift), variance

    def _scale_and_shift(self) -> tuple[Tensor | None, Tensor | None]:
        """What the kernel's core is multiplied by, and what is added to it before."""
        scale, offset = (
            None if each is None else each(self.conv.mixing)
            for each in self.kernel.kernel.factors()
        )
        return scale, offset if scale is None or offset is None else offset / scale

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
        scale, shift = self._scale_and_shift()
        with part(1 + len(kernel.noises)):
            norm = conv.constant_scale()
        weight, factor = conv.coefficients, None
        if scale is not None:
            weight = weight * scale
        if norm is not None:
            weight, factor = weight * norm, norm.square()
        changes: dict[str, Any] = {"is_scaled": True}
        norms, squares = None, kernel.inducing
        if squares is not None and kernel.kernel.grows_with_norm and bool((squares > 0).all()):
            norms = squares.sqrt()
            weight = weight * norms.reshape(-1, *(1,) * conv.window.ndim)
            shift = None if shift is None else shift / norms
            changes["kernel"] = kernel.but(inducing=None)
            ends = kernel.variance(norms.new_tensor([0.0, 1.0])) * (1 if factor is None else factor)
            changes |= {"slope": ends[1] - ends[0], "intercept": ends[0]}
            factor = None
        changes["shift"] = shift
        changes["conv"] = conv.but(mixing=weight, right=None, norm=None, factor=factor).frozen()
        return None if norms is None else norms.reciprocal(), super().frozen(**changes)

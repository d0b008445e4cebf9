"""What a kernel does to a Gram, alone and together with the noise and the convolution after it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from convdkm.ops.base import Blocks, Operation, Plan, part
from convdkm.ops.conv import ConvPlan
from convdkm.ops.inducing import noisy
from convdkm.ops.scalars import affine


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
    jitter: tuple[float, float] | None = None  # predictor files of earlier versions have none

    def __init__(
        self,
        kernel: Any,
        ii: Tensor,
        *,
        joins: bool = False,
        jitter: tuple[float, float] | None = None,
    ) -> None:
        if jitter is not None:
            ii = noisy(ii, *jitter)
        own = ii.diagonal()
        super().__init__(torch.diagonal_scatter(kernel.between(ii), kernel.variance(own)))
        self.kernel, self.joins, self.inducing = kernel, joins, own
        self.noises: tuple[tuple[float, float], ...] = ()
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
        shift: ``offset/slope`` then, a number or ``(P,)``.
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
            own = kernel.variance(tt)
        else:
            own = torch.addcmul(self.intercept, tt, self.slope)
        with part(1 + len(kernel.noises)):
            weight, own = conv.scaled(own, it.dtype, scale)
            conv.window.require_space(it.shape[2:])
        shift = None if shift is None else shift.to(it.dtype)
        blocks = (it, kernel.inducing, kernel.jittered(tt))
        return kernel.kernel.convolved(conv.window, blocks, weight, shift), own

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
            number = conv.number()
        weight, factor = conv.mixing, None
        if scale is not None:
            weight = weight * scale
        if number is not None:
            weight, factor = weight * number, number.square()
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
        changes["conv"] = conv.but(mixing=weight, norm=None, factor=factor).frozen()
        return None if norms is None else norms.reciprocal(), super().frozen(**changes)

r"""Arc-cosine kernels (Cho & Saul, 2009): the Gram of infinitely many ReLU (or step) features.

With :math:`a = G_{xx}`, :math:`b = G_{yy}`, :math:`c = G_{xy}`, :math:`s = \sqrt{ab - c^2}` and
:math:`\theta = \mathrm{atan2}(s, c)` the angle between the two points,

.. math::
    k_0 = \frac{\pi-\theta}{\pi}, \qquad
    k_1 = \frac{s + (\pi-\theta)c}{\pi}, \qquad
    k_2 = \frac{3sc + (\pi-\theta)(ab + 2c^2)}{\pi}.

Automatic differentiation through ``acos`` or the square root gives NaN where two points coincide.
Here the derivatives are written out; those of order 1 and 2 have no singularity in c,

.. math::
    \frac{\partial k_1}{\partial c} = \frac{\pi-\theta}{\pi}, \quad
    \frac{\partial k_1}{\partial a} = \frac{s}{2\pi a}, \qquad
    \frac{\partial k_2}{\partial c} = \frac{4s + 4(\pi-\theta)c}{\pi}, \quad
    \frac{\partial k_2}{\partial a} = \frac{cs + (\pi-\theta)ab}{\pi a}.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from convdkm.elementwise import engine
from convdkm.errors import InvalidInputError
from convdkm.kernels.base import Kernel, KernelPlan, Positive
from convdkm.kernels.fused import FusedPlan
from convdkm.kernels.pointwise import Pointwise
from convdkm.kernels.relu_conv import ReluPointwise
from convdkm.layers.base import Plan, keeps
from convdkm.numerics import safe_divide


def _sine_and_angle(cross: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """``s = |x||y| sin θ`` and ``π − θ``."""
    sine = (left * right - cross.square()).clamp_(min=0).sqrt_()
    return sine, math.pi / 2 + torch.atan2(cross, sine)


def _value(order: int, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
    sine, supplement = _sine_and_angle(cross, left, right)
    if order == 0:
        return supplement / math.pi
    if order == 1:
        return (sine + supplement * cross) / math.pi
    return (3 * sine * cross + supplement * (left * right + 2 * cross.square())) / math.pi


class _ArcCosine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, order: int, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        ctx.order = order
        ctx.save_for_backward(cross, left, right)
        return _value(order, cross, left, right)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cross, left, right = ctx.saved_tensors
        sine, supplement = _sine_and_angle(cross, left, right)
        if ctx.order == 0:
            # dk/dc = 1/(πs) has no finite limit where the points coincide; below the resolution
            # of the dtype the slope is taken from the nearest angle that can be told from zero.
            least = torch.finfo(cross.dtype).eps ** 0.5 * (left * right).sqrt()
            by_cross = safe_divide(torch.ones_like(sine), torch.maximum(sine, least)) / math.pi
            shared = -0.5 * cross * by_cross
        elif ctx.order == 1:
            by_cross = supplement / math.pi
            shared = sine / (2 * math.pi)
        else:
            by_cross = 4 * (sine + supplement * cross) / math.pi
            shared = (cross * sine + supplement * left * right) / math.pi
        shared = grad * shared
        by_left = by_right = None
        if ctx.needs_input_grad[2]:
            by_left = safe_divide(shared.sum_to_size(left.shape), left)
        if ctx.needs_input_grad[3]:
            by_right = safe_divide(shared.sum_to_size(right.shape), right)
        return None, grad * by_cross, by_left, by_right


def arccosine(cross: Tensor, left: Tensor, right: Tensor, order: int = 1) -> Tensor:
    """Arc-cosine kernel from ``G_xy``, ``G_xx`` and ``G_yy``, with derivatives that stay finite."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in (cross, left, right)):
        result: Tensor = _ArcCosine.apply(order, cross, left, right)
        return result
    return _value(order, cross, left, right)


class ArcCosine(Kernel):
    r"""Arc-cosine kernel :math:`\sigma_w^2\,k_n(x, y) + \sigma_b^2`.

    Order 1, the kernel of the ReLU, is the paper's choice everywhere. It is scaled so that
    :math:`k_1(x, x) = G_{xx}`. A point that is zero counts as orthogonal to all others.

    Args:
        order: 0 (step function), 1 (ReLU) or 2 (squared ReLU).
        weight_variance: :math:`\sigma_w^2`; 1 if not given.
        bias_variance: :math:`\sigma_b^2`; none if not given.
        learn: learn those of the two variances that are given.

    Attributes:
        compiled: see :meth:`convdkm.DeepKernelMachine.compile_elementwise`.
    """

    def __init__(
        self,
        order: int = 1,
        *,
        weight_variance: float | None = None,
        bias_variance: float | None = None,
        learn: bool = True,
    ) -> None:
        super().__init__()
        if order not in (0, 1, 2):
            raise InvalidInputError(f"the order of an arc-cosine kernel is 0, 1 or 2, got {order}")
        self.order = order
        self.compiled = False
        self.weight_variance = (
            None
            if weight_variance is None
            else Positive("weight_variance", weight_variance, learn=learn)
        )
        self.bias_variance = (
            None if bias_variance is None else Positive("bias_variance", bias_variance, learn=learn)
        )

    def variances(self, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        r""":math:`\sigma_w^2` and :math:`\sigma_b^2` with the dtype of ``like``, if set."""
        weight = None if self.weight_variance is None else self.weight_variance(like)
        return weight, None if self.bias_variance is None else self.bias_variance(like)

    def _affine(self, value: Tensor) -> Tensor:
        slope, offset = self.variances(value)
        value = value if slope is None else slope * value
        return value if offset is None else value + offset

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return self._affine(arccosine(cross, left, right, self.order))

    def variance(self, own: Tensor) -> Tensor:
        value = (0.5 + 0.5 * (own > 0).to(own.dtype), own, 3 * own.square())[self.order]
        return self._affine(value)

    def plan(self, ii: Tensor) -> Plan:
        fused = self.order == 1 and keeps(self, ArcCosine, "of", "variance", "_affine")
        return ReluPlan(self, ii) if fused else KernelPlan(self, ii)

    def extra_repr(self) -> str:
        return f"order={self.order}"


class _InducingRelu(torch.autograd.Function):
    r""":math:`\sigma_w^2 k_1 + \sigma_b^2` of a symmetric matrix of inner products.

    Its diagonal is exactly :math:`\sigma_w^2 G_{xx} + \sigma_b^2`.
    """

    @staticmethod
    def forward(ctx: Any, ii: Tensor, slope: Tensor | None, offset: Tensor | None) -> Tensor:
        own = ii.diagonal()
        sine, supplement = _sine_and_angle(ii, own[:, None], own)
        value = torch.addcmul(sine, supplement, ii).mul_(1 / math.pi)
        value.diagonal().copy_(own)
        result = value if slope is None else value * slope
        ctx.save_for_backward(own, sine, supplement, slope, None if slope is None else value)
        return result if offset is None else result + offset

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        own, sine, supplement, slope, value = ctx.saved_tensors
        by_slope = (grad * value).sum() if ctx.needs_input_grad[1] else None
        by_offset = grad.sum() if ctx.needs_input_grad[2] else None
        grad = grad if slope is None else grad * slope
        weighted = grad * sine
        weighted.diagonal().zero_()
        shared = (weighted.sum(0) + weighted.sum(1)).mul_(0.5 / math.pi)
        result = (grad * supplement).mul_(1 / math.pi)
        result.diagonal().copy_(grad.diagonal() + safe_divide(shared, own))
        return result, by_slope, by_offset


class ReluPlan(FusedPlan):
    r"""The kernel of order 1, and white noise after it.

    With κ = π k₁, the convolution of :math:`\sigma_w^2 k_1 + \sigma_b^2` by C is that of
    :math:`\kappa + \pi\sigma_b^2/\sigma_w^2` by :math:`C\sigma_w^2/\pi`.
    """

    times = 1 / math.pi

    def __init__(self, kernel: ArcCosine, ii: Tensor) -> None:
        self.arccosine = kernel
        super().__init__(kernel, ii, *kernel.variances(ii))

    def inside(self, ii: Tensor) -> Tensor:
        result: Tensor = _InducingRelu.apply(ii, self.slope, self.offset)
        return result

    def pointwise(self) -> Pointwise:
        return ReluPointwise(self.slope, self.offset, engine(compiled=self.arccosine.compiled))

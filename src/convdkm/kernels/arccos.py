r"""Arc-cosine kernels (Cho & Saul, 2009): the Gram of infinitely many ReLU (or step) features.

With :math:`\theta = \arccos\rho` the angle between two points,

.. math::
    \kappa_0 = \frac{\pi-\theta}{\pi}, \qquad
    \kappa_1 = \frac{\sin\theta + (\pi-\theta)\rho}{\pi}, \qquad
    \kappa_2 = \frac{3\rho\sin\theta + (\pi-\theta)(1 + 2\rho^2)}{\pi}.

Automatic differentiation through the arc cosine gives NaN where two points coincide. Those of order
1 and 2 have no singularity there: :math:`\kappa_1' = \kappa_0` and :math:`\kappa_2' = 4\kappa_1`.

With :math:`u = 1 - |\rho|`, that of order 1 is :math:`\max(\rho, 0) + u^{3/2} r(u)` and the angle
:math:`\arccos|\rho| = \sqrt u\,t(u)`. Both r and t are smooth where they are needed: their nearest
singularity is at u = 2, so that a short polynomial takes the place of the angle, as precise as the
numbers themselves. (By interpolation at Chebyshev's nodes.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from convdkm.errors import InvalidInputError
from convdkm.kernels.angular import Angular
from convdkm.kernels.blocks import Scratch
from convdkm.layers.base import keeps

_SINGLE = (
    0.00016558550229587562,
    -1.0112491988163717e-05,
    0.0006537140814849389,
    0.0023878848222679814,
    0.01500735753322431,
    0.3001054096005962,
)
"""r, highest power first; the error of u^(3/2) r(u) is below 5e-8."""

_DOUBLE = (
    1.649376186704804e-07,
    -1.0320320210270318e-06,
    3.122797236559908e-06,
    -5.7194460595988465e-06,
    7.229972599882493e-06,
    -6.260420548328054e-06,
    4.471610999228698e-06,
    -1.1711648904343405e-06,
    2.840347225937841e-06,
    5.597039148010689e-06,
    1.6307253182092548e-05,
    4.841407302919641e-05,
    0.00015541717475577531,
    0.0005582318249220994,
    0.002411561561610428,
    0.015005271935946796,
    0.3001054387190354,
)
"""The same for float64; the error is below 2e-17."""

_ANGLE = (
    0.0012117377709728316,
    -0.0019906429652962743,
    0.003338417019563167,
    0.0014788598162134292,
    0.008216730965504127,
    0.02647448250003448,
    0.11785316670027057,
    1.4142135464083156,
)
"""t for float32, highest power first; the error of √u t(u) is below 3e-8."""


class ArcCosine(Angular):
    r"""Arc-cosine kernel :math:`\sigma_w^2\,h^n\kappa_n(\rho) + \sigma_b^2`.

    Order 1, the kernel of the ReLU, is the paper's choice everywhere. It is scaled so that
    :math:`k_1(x, x) = G_{xx}`.

    Args:
        order: 0 (step function), 1 (ReLU) or 2 (squared ReLU).
        weight_variance: :math:`\sigma_w^2`; 1 if not given.
        bias_variance: :math:`\sigma_b^2`; none if not given.
        learn: learn those of the two variances that are given.
    """

    def __init__(
        self,
        order: int = 1,
        *,
        weight_variance: float | None = None,
        bias_variance: float | None = None,
        learn: bool = True,
    ) -> None:
        super().__init__(weight_variance=weight_variance, bias_variance=bias_variance, learn=learn)
        if order not in (0, 1, 2):
            raise InvalidInputError(f"the order of an arc-cosine kernel is 0, 1 or 2, got {order}")
        self.order = self.degree = order

    @property
    def keeps_norm(self) -> bool:  # type: ignore[override]
        return self.order == 1

    def of_cosine(self, cosine: Tensor) -> Tensor:
        if self.order == 0:
            # What rounding keeps from ±1 would be an angle of its root.
            return step((cosine * (1 + 4 * torch.finfo(cosine.dtype).eps)).clamp(-1, 1))
        if self.order == 1:
            return relu(cosine)
        return 3 / math.pi * cosine * sine(cosine) + step(cosine) * (1 + 2 * cosine.square())

    def of_cosine_(self, cosine: Tensor, scratch: Scratch) -> Tensor:
        if self.order != 1 or not keeps(self, ArcCosine, "of_cosine"):
            return super().of_cosine_(cosine, scratch)
        return relu_(cosine, scratch)

    def slope(self, cosine: Tensor) -> Tensor:
        if self.order == 1:
            return step(cosine)
        if self.order == 2:
            return 4 * relu(cosine)
        # 1/(π sin θ) has no finite limit where the points coincide; below the resolution of the
        # dtype the slope is taken from the nearest angle that can be told from zero.
        return 1 / (math.pi * sine(cosine).clamp(min=torch.finfo(cosine.dtype).eps ** 0.5))

    def tangent(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        if self.order == 0:
            return torch.zeros_like(cross)  # a step is flat almost everywhere
        return super().tangent(cross, left, right)

    def with_slope(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        return relu_with_slope(cosine) if self.order == 1 else super().with_slope(cosine)

    def slope_and_rest(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        if self.order != 1 or not keeps(self, ArcCosine, "of_cosine", "slope", "with_slope"):
            return super().slope_and_rest(cosine)
        return step(cosine), sine(cosine).mul_(1 / math.pi)

    def extra_repr(self) -> str:
        return f"order={self.order}"


def relu(cosine: Tensor) -> Tensor:
    """κ₁, exactly 1 at 1."""
    u = 1 - cosine.abs()
    return cosine.clamp(min=0) + u * u.sqrt() * _polynomial(_coefficients(cosine), u)


def relu_(cosine: Tensor, scratch: Scratch) -> Tensor:
    """The same, written over the numbers; see :meth:`Kernel.core_`."""
    u, value = scratch.like(cosine, 2)
    numbers = (1.0, *_coefficients(cosine))
    one, first, second, *others = _constants(numbers, cosine.dtype, cosine.device)
    torch.sub(one, torch.abs(cosine, out=u), out=u)
    torch.addcmul(second, first, u, out=value)
    for constant in others:
        torch.addcmul(constant, value, u, out=value)
    return cosine.clamp_(min=0).addcmul_(value.mul_(u), u.sqrt_())


def relu_with_slope(cosine: Tensor) -> tuple[Tensor, Tensor]:
    """κ₁ and κ₁′ = κ₀."""
    slope = step(cosine)
    return torch.addcmul(sine(cosine) * (1 / math.pi), cosine, slope), slope


def _coefficients(cosine: Tensor) -> tuple[float, ...]:
    """Of r, highest power first."""
    return _DOUBLE if cosine.dtype == torch.float64 else _SINGLE


def step(cosine: Tensor) -> Tensor:
    """κ₀, exactly 1 at 1."""
    if cosine.dtype == torch.float64 or not torch.compiler.is_compiling():
        return 1 - torch.acos(cosine) * (1 / math.pi)
    # A compiled polynomial takes half the time of a compiled arc cosine.
    u = 1 - cosine.abs()
    angle = u.sqrt() * _polynomial(_ANGLE, u) * (1 / math.pi)
    return torch.where(cosine < 0, angle, 1 - angle)


def sine(cosine: Tensor) -> Tensor:
    """Of the angle, precise where it is small."""
    u = 1 - cosine
    return torch.addcmul(u, u, cosine).sqrt()


def _polynomial(coefficients: Sequence[float], u: Tensor) -> Tensor:
    """A polynomial, its coefficients from the highest power down."""
    if torch.compiler.is_compiling():
        first, second, *others = coefficients
        total = u * first + second
        for coefficient in others:
            total = total * u + coefficient
        return total
    constants = _constants(tuple(coefficients), u.dtype, u.device)
    total = torch.addcmul(constants[1], constants[0], u)
    for constant in constants[2:]:
        total = torch.addcmul(constant, total, u)  # one pass where a product and a sum take two
    return total


@functools.cache
def _constants(
    numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(number, dtype=dtype, device=device) for number in numbers)


def arccosine(cross: Tensor, left: Tensor, right: Tensor, order: int = 1) -> Tensor:
    """Arc-cosine kernel from ``G_xy``, ``G_xx`` and ``G_yy``, with derivatives that stay finite."""
    return ArcCosine(order).of(cross, left, right)

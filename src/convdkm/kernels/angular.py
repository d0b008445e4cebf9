r"""Angular kernels: functions of the cosine of the angle between two points.

With :math:`a = G_{xx}`, :math:`b = G_{yy}`, :math:`c = G_{xy}`, :math:`h = \sqrt{ab}` and
:math:`\rho = c/h`,

.. math::
    k = h^d\,\kappa(\rho), \qquad
    \frac{\partial k}{\partial c} = h^{d-1}\kappa'(\rho), \qquad
    \frac{\partial k}{\partial a} = \frac{h^d}{2a}\left(d\,\kappa(\rho) - \rho\kappa'(\rho)\right),

and the same for b. A new one is a single function::

    class Exponential(Angular):
        def of_cosine(self, cosine):
            return torch.exp(cosine - 1)
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from convdkm.kernels.base import Positive, WrittenOut, derivative
from convdkm.kernels.blocks import Partials, Scratch, Side
from convdkm.layers.base import keeps


class Angular(WrittenOut):
    r"""Base class of kernels :math:`\sigma_w^2 h^d\kappa(\rho) + \sigma_b^2`.

    Define :meth:`of_cosine`; and :meth:`slope`, where differentiating that function would go wrong
    or can be done better. A point that is zero counts as orthogonal to all others.

    Args:
        weight_variance: :math:`\sigma_w^2`; 1 if not given.
        bias_variance: :math:`\sigma_b^2`; none if not given.
        learn: learn those of the two variances that are given.

    Attributes:
        degree: d; 1 for kernels that grow as their inputs do.
        keeps_norm: whether :math:`\kappa(1) = 1`.
        shift: s; with another than 0, :math:`a + s` and :math:`b + s` take the places of a and b.
    """

    degree: int = 1
    shift: float = 0.0
    keeps_norm: ClassVar[bool] = False

    def __init__(
        self,
        *,
        weight_variance: float | None = None,
        bias_variance: float | None = None,
        learn: bool = True,
    ) -> None:
        super().__init__()
        self.weight_variance = Positive.if_given("weight_variance", weight_variance, learn=learn)
        self.bias_variance = Positive.if_given("bias_variance", bias_variance, learn=learn)

    def of_cosine(self, cosine: Tensor) -> Tensor:
        """κ of numbers between −1 and 1."""
        raise NotImplementedError(f"{type(self).__name__} must define of_cosine(cosine)")

    def of_cosine_(self, cosine: Tensor, scratch: Scratch) -> Tensor:
        """κ, written over the numbers; see :meth:`Kernel.core_`."""
        del scratch
        return cosine.copy_(self.of_cosine(cosine))

    def slope(self, cosine: Tensor) -> Tensor:
        """κ′ of numbers between −1 and 1, finite everywhere."""
        return derivative(self.of_cosine, cosine)

    def with_slope(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """κ and κ′, for kernels that have them cheaper together."""
        return self.of_cosine(cosine), self.slope(cosine)

    def slope_and_rest(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """κ′ and dκ − ρκ′, for kernels that have them cheaper together."""
        value, slope = self.with_slope(cosine)
        value = value if self.degree == 1 else value * self.degree
        return slope, torch.addcmul(value, cosine, slope, value=-1)

    @property
    def grows_with_norm(self) -> bool:
        return self.degree == 1 and not self.shift and keeps(self, Angular, "core", "variance")

    def factors(self) -> tuple[Positive | None, Positive | None]:
        return self.weight_variance, self.bias_variance

    def variance(self, own: Tensor) -> Tensor:
        if self.shift:
            whole = own + self.shift
            value = self.of_cosine(own / whole) * whole**self.degree
        elif not self.degree:
            value = self.of_cosine((own > 0).to(own.dtype))
        else:
            value = own if self.degree == 1 else own**self.degree
            if not self.keeps_norm:
                value = value * self.of_cosine(own.new_ones(()))
        return self.scaled(value)

    def core(self, cross: Tensor, left: Side | None, right: Side) -> Tensor:
        """See :meth:`convdkm.Kernel.core`; without ``left`` for points of norm one."""
        left, right = left and left.plus(self.shift), right.plus(self.shift)
        value = self.of_cosine(_cosine(cross, left, right))
        for _ in range(self.degree):
            value = value * (right.root if left is None else left.root * right.root)
        return value

    def core_(self, cross: Tensor, left: Side | None, right: Side, scratch: Scratch) -> Tensor:
        if left is not None and not keeps(self, Angular, "core"):
            return super().core_(cross, left, right, scratch)
        sides = [side.plus(self.shift) for side in (left, right) if side is not None]
        for side in sides:
            cross.mul_(side.inverse)
        value = self.of_cosine_(cross.clamp_(-1, 1), scratch)
        for side in sides * self.degree:
            value.mul_(side.root)
        return value

    def partials(self, cross: Tensor, left: Side, right: Side) -> Partials:
        left, right = left.plus(self.shift), right.plus(self.shift)
        cosine = _cosine(cross, left, right)
        value, slope = self.with_slope(cosine)
        both = 0.5 * (self.degree * value - cosine * slope)
        norm = left.root * right.root
        for _ in range(self.degree):
            value, both = value * norm, both * norm
        slope = self._by_norm(slope, left, right)
        return Partials(value, slope, both * left.inverse.square(), both * right.inverse.square())

    def tangent(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        if not keeps(self, Angular, "of", "partials"):
            return super().tangent(cross, left, right)
        with torch.no_grad():
            one, other = (Side.of(each).plus(self.shift) for each in (left, right))
            if not self.shift:
                # What rounding keeps from ±1 would be an angle of its root, and the slope feels it.
                cross = cross * (1 + 4 * torch.finfo(cross.dtype).eps)
            value = self._by_norm(self.slope(_cosine(cross, one, other)), one, other)
            return self.scaled(value, shifted=False)

    def pulled(
        self, grad: Tensor, cross: Tensor, left: Side, right: Side
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not keeps(self, Angular, "partials"):
            return super().pulled(grad, cross, left, right)
        left, right = left.plus(self.shift), right.plus(self.shift)
        slope, rest = self.slope_and_rest(_cosine(cross, left, right))
        # What belongs to a side alone is multiplied with the sums, or part of them.
        powers = [side.root**self.degree for side in (left, right)]
        sides = zip(powers, (left, right), strict=True)
        one, other = (power * side.inverse.square() / 2 for power, side in sides)
        weighted = grad * rest
        first, second = (power.to(weighted.dtype) for power in powers)  # autocast mixes dtypes
        by_left, by_right = (second.mT @ weighted)[0], weighted @ first[:, None]
        return self._by_norm(grad * slope, left, right), by_left * one, by_right * other

    def _by_norm(self, slope: Tensor, left: Side, right: Side) -> Tensor:
        """The slope by the cosine, times :math:`h^{d-1}`."""
        if not self.degree:
            return slope * _inverse(left, right)
        for _ in range(1, self.degree):
            slope = slope * left.root * right.root
        return slope


def _inverse(left: Side | None, right: Side) -> Tensor:
    return right.inverse if left is None else left.inverse * right.inverse


def _cosine(cross: Tensor, left: Side | None, right: Side) -> Tensor:
    """ρ; rounding may carry it a little beyond ±1."""
    return (cross * _inverse(left, right)).clamp(-1, 1)

r"""Isotropic kernels: functions of the squared distance alone.

That distance is known from a Gram matrix (Eq. 2): :math:`R = G_{xx} - 2G_{xy} + G_{yy}`.

A new one is a single function::

    class Cauchy(Isotropic):
        def of_squared_distance(self, r2):
            return 1 / (1 + r2)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convdkm.errors import InvalidInputError
from convdkm.kernels.base import Positive, WrittenOut, derivative
from convdkm.kernels.blocks import Partials, Side
from convdkm.numerics import safe_sqrt as safe_sqrt  # noqa: PLC0414 - a public name


class Isotropic(WrittenOut):
    r"""Base class of kernels :math:`\sigma^2 f(R / \ell^2)` of the squared distance alone.

    Define :meth:`of_squared_distance`; and :meth:`slope`, where differentiating that function would
    go wrong or can be done better. Where it needs a distance and not its square, use
    :func:`safe_sqrt`.

    Args:
        lengthscale: :math:`\ell`.
        scale: :math:`\sigma^2`.
        learn: learn both.
    """

    def __init__(
        self, lengthscale: float = 1.0, *, scale: float = 1.0, learn: bool = False
    ) -> None:
        super().__init__()
        self.lengthscale = Positive("lengthscale", lengthscale, learn=learn)
        self.scale = Positive("scale", scale, learn=learn)

    def of_squared_distance(self, r2: Tensor) -> Tensor:
        """``f(r²)`` of the squared distance in units of the length scale."""
        raise NotImplementedError(f"{type(self).__name__} must define of_squared_distance(r2)")

    def slope(self, r2: Tensor) -> Tensor:
        """``f′(r²)``, finite everywhere."""
        return derivative(self.of_squared_distance, r2)

    def factors(self) -> tuple[Positive | None, Positive | None]:
        return self.scale, None

    def variance(self, own: Tensor) -> Tensor:
        return self.scaled(self.of_squared_distance(torch.zeros_like(own)))

    def core(self, cross: Tensor, left: Side, right: Side) -> Tensor:
        return self.of_squared_distance(self._squared_distance(cross, left, right))

    def partials(self, cross: Tensor, left: Side, right: Side) -> Partials:
        r2 = self._squared_distance(cross, left, right)
        slope = self.slope(r2) / self.lengthscale(cross).square()
        return Partials(self.of_squared_distance(r2), -2 * slope, slope, slope)

    def _squared_distance(self, cross: Tensor, left: Side, right: Side) -> Tensor:
        r2 = left.variance + right.variance - 2 * cross
        return r2.clamp(min=0) / self.lengthscale(cross).square()


class SquaredExponential(Isotropic):
    r""":math:`\exp(-R / 2\ell^2)`."""

    def of_squared_distance(self, r2: Tensor) -> Tensor:
        return torch.exp(-0.5 * r2)


class Matern(Isotropic):
    r"""Matérn kernel of smoothness 1/2, 3/2 or 5/2.

    .. math:: e^{-r}, \qquad (1 + \sqrt3 r)\,e^{-\sqrt3 r}, \qquad
              (1 + \sqrt5 r + \tfrac53 r^2)\,e^{-\sqrt5 r}
    """

    def __init__(
        self,
        smoothness: float = 2.5,
        lengthscale: float = 1.0,
        *,
        scale: float = 1.0,
        learn: bool = False,
    ) -> None:
        super().__init__(lengthscale, scale=scale, learn=learn)
        if smoothness not in (0.5, 1.5, 2.5):
            raise InvalidInputError(
                f"the smoothness of a Matérn kernel is 0.5, 1.5 or 2.5, got {smoothness}"
            )
        self.smoothness = smoothness

    def of_squared_distance(self, r2: Tensor) -> Tensor:
        r = safe_sqrt(r2) * math.sqrt(2 * self.smoothness)
        decay = torch.exp(-r)
        if self.smoothness == 0.5:
            return decay
        return (1 + r if self.smoothness == 1.5 else 1 + r + r.square() / 3) * decay

    def slope(self, r2: Tensor) -> Tensor:
        if self.smoothness == 0.5:
            return super().slope(r2)
        r = r2.sqrt() * math.sqrt(2 * self.smoothness)
        decay = torch.exp(-r)
        return -1.5 * decay if self.smoothness == 1.5 else (-5 / 6) * (1 + r) * decay

    def tangent(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        if self.smoothness == 0.5:
            raise InvalidInputError(
                "features of the Matérn kernel of smoothness 0.5 have no derivative, so that no"
                " neural tangent kernel goes through it; use smoothness 1.5 or 2.5"
            )
        return super().tangent(cross, left, right)

    def extra_repr(self) -> str:
        return f"smoothness={self.smoothness}"


class RationalQuadratic(Isotropic):
    r""":math:`\left(1 + R / 2\alpha\ell^2\right)^{-\alpha}`: a mixture of length scales."""

    def __init__(
        self,
        alpha: float = 1.0,
        lengthscale: float = 1.0,
        *,
        scale: float = 1.0,
        learn: bool = False,
    ) -> None:
        super().__init__(lengthscale, scale=scale, learn=learn)
        self.alpha = Positive("alpha", alpha, learn=learn)

    def of_squared_distance(self, r2: Tensor) -> Tensor:
        alpha = self.alpha(r2)
        return torch.exp(-alpha * torch.log1p(r2 / (2 * alpha)))

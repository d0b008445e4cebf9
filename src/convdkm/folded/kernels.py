r"""Kernels with constant parameters; see :mod:`convdkm.kernels` for their formulas.

The arc-cosine kernels are written by the cosine :math:`x = G_{xy}/\sqrt{G_{xx}G_{yy}}`: they need
no arctangent of two arguments, which other programs do not have.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convdkm.folded.base import Folded, FoldedList, known
from convdkm.folded.functions import inverse_root, relu
from convdkm.kernels.polynomial import series


class FoldedKernel(Folded):
    """``of(cross, left, right)`` and ``variance(own)``, as :class:`convdkm.Kernel` has them."""

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """``k(x, y)`` from ``G_xy``, ``G_xx`` and ``G_yy``."""
        raise NotImplementedError

    def variance(self, own: Tensor) -> Tensor:
        """``k(x, x)`` from ``G_xx``."""
        raise NotImplementedError


def cosine(cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The cosine of the angle between two points; zero where one of them is zero."""
    return (cross * inverse_root(left) * inverse_root(right)).clamp(-1, 1)


@known
class FoldedArcCosine(FoldedKernel):
    """``slope · k_n + intercept``."""

    settings = ("order", "slope", "intercept")

    def __init__(self, *, order: int, slope: float, intercept: float) -> None:
        super().__init__()
        self.order, self.slope, self.intercept = order, slope, intercept

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        if self.order == 1:
            value = relu(cross, inverse_root(left), right, None) * left.sqrt()
        else:
            x = cosine(cross, left, right)
            value = (math.pi / 2 + torch.asin(x)) / math.pi
            if self.order == 2:
                sine = ((1 - x) * (1 + x)).sqrt()
                value = left * right * (3 * sine * x / math.pi + value * (1 + 2 * x.square()))
        return self.slope * value + self.intercept

    def variance(self, own: Tensor) -> Tensor:
        value = (0.5 + 0.5 * (own > 0).to(own.dtype), own, 3 * own.square())[self.order]
        return self.slope * value + self.intercept


@known
class FoldedLinear(FoldedKernel):
    """``G_xy`` itself."""

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return cross

    def variance(self, own: Tensor) -> Tensor:
        return own


@known
class FoldedSum(FoldedKernel):
    """``Σ wₖ kₖ``."""

    settings = ("weights",)
    kernels: FoldedList

    def __init__(self, *, kernels: FoldedList, weights: tuple[float, ...]) -> None:
        super().__init__()
        self.kernels, self.weights = kernels, weights

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return self._combined([k.of(cross, left, right) for k in _kernels(self.kernels)])

    def variance(self, own: Tensor) -> Tensor:
        return self._combined([kernel.variance(own) for kernel in _kernels(self.kernels)])

    def _combined(self, values: list[Tensor]) -> Tensor:
        total = self.weights[0] * values[0]
        for weight, value in zip(self.weights[1:], values[1:], strict=True):
            total = total + weight * value
        return total


@known
class FoldedProduct(FoldedKernel):
    """``k₁ · k₂ · …``"""

    kernels: FoldedList

    def __init__(self, *, kernels: FoldedList) -> None:
        super().__init__()
        self.kernels = kernels

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return math.prod(  # type: ignore[return-value]
            [kernel.of(cross, left, right) for kernel in _kernels(self.kernels)], start=1.0
        )

    def variance(self, own: Tensor) -> Tensor:
        return math.prod(  # type: ignore[return-value]
            [kernel.variance(own) for kernel in _kernels(self.kernels)], start=1.0
        )


def _kernels(parts: FoldedList) -> list[FoldedKernel]:
    return [part for part in parts.in_order() if isinstance(part, FoldedKernel)]


@known
class FoldedIsotropic(FoldedKernel):
    r""":math:`\sigma^2 f(R/\ell^2)` with f a squared exponential, Matérn or rational quadratic.

    Args:
        form: ``"squared-exponential"``, ``"matern"`` or ``"rational-quadratic"``.
        precision: :math:`1/\ell^2`.
        scale: :math:`\sigma^2`.
        shape: smoothness of a Matérn kernel, α of a rational quadratic.
    """

    settings = ("form", "precision", "scale", "shape")

    def __init__(self, *, form: str, precision: float, scale: float, shape: float) -> None:
        super().__init__()
        self.form, self.precision, self.scale, self.shape = form, precision, scale, shape

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        r2 = (left + right - 2 * cross).clamp(min=0) * self.precision
        return self.scale * self._of_squared_distance(r2)

    def variance(self, own: Tensor) -> Tensor:
        return torch.full_like(own, self.scale)

    def _of_squared_distance(self, r2: Tensor) -> Tensor:
        if self.form == "squared-exponential":
            return torch.exp(-0.5 * r2)
        if self.form == "rational-quadratic":
            return torch.exp(-self.shape * torch.log1p(r2 / (2 * self.shape)))
        r = r2.sqrt() * math.sqrt(2 * self.shape)
        decay = torch.exp(-r)
        if self.shape == 0.5:
            return decay
        return (1 + r) * decay if self.shape == 1.5 else (1 + r + r.square() / 3) * decay


@known
class FoldedNormalisedGaussian(FoldedKernel):
    r""":math:`h\exp(\gamma(x - 1))`, with x the cosine and h the product of the norms."""

    settings = ("gamma",)

    def __init__(self, *, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        norm = left.sqrt() * right.sqrt()
        return norm * torch.exp(self.gamma * (cosine(cross, left, right) - 1))

    def variance(self, own: Tensor) -> Tensor:
        return own


@known
class FoldedNormalisedPolynomial(FoldedKernel):
    r""":math:`c\,q(x)`, with x the cosine and c the inner product.

    Args:
        weights: coefficients of q, from 0 up.
    """

    settings = ("weights",)

    def __init__(self, *, weights: tuple[float, ...]) -> None:
        super().__init__()
        self.weights = tuple(weights)

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return cross * series(cosine(cross, left, right), self.weights)

    def variance(self, own: Tensor) -> Tensor:
        return own

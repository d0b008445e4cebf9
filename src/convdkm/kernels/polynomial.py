r"""The normalised polynomial kernel.

With :math:`a = G_{xx}`, :math:`b = G_{yy}`, :math:`c = G_{xy}` and the cosine
:math:`\rho = c/\sqrt{ab}`,

.. math::
    k = \sqrt{ab}\,\sum_{n=1}^N w_n\rho^n = c\,q(\rho), \qquad
    q(\rho) = \sum_n w_n\rho^{n-1}, \qquad
    \frac{\partial k}{\partial c} = q + \rho q', \qquad
    \frac{\partial k}{\partial a} = -\frac{c\rho q'}{2a}.

A kernel of cosines is such a series with weights that are not negative, and they add up to its
variance. Its quadratic part relative to the linear one, :math:`\rho w_2/w_1`, says how nonlinear it
is where cosines are small; all that lies in higher powers is then variance that inducing points
cannot explain. Of the normalised Gaussian kernel with :math:`\gamma = 6` the two are 0.015 and
0.045 of the variance; here they can be all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from convdkm.elementwise import PIECEWISE, Engine, engine
from convdkm.elementwise.engine import series
from convdkm.errors import InvalidInputError
from convdkm.kernels.base import Kernel, KernelPlan
from convdkm.kernels.fused import FusedPlan
from convdkm.kernels.pointwise import Pointwise, PointwiseGradient
from convdkm.layers.base import Plan, keeps
from convdkm.numerics import inverse_root, safe_divide


class NormalisedPolynomial(Kernel):
    r"""Normalised polynomial kernel.

    .. math:: k(x, y) = |x||y| \sum_{n=1}^N w_n \left(\frac{G_{xy}}{|x||y|}\right)^n,
              \qquad |x| = \sqrt{G_{xx}}, \quad \sum_n w_n = 1

    It keeps the norm of its input, :math:`k(x, x) = G_{xx}`, and is zero where an input is zero.

    Args:
        weights: :math:`w_1, \dots, w_N`, not negative; only their ratios matter.

    Attributes:
        weights: as given, divided by their sum.
        compiled: see :meth:`convdkm.DeepKernelMachine.compile_elementwise`.
    """

    def __init__(self, weights: Sequence[float] = (0.25, 0.75)) -> None:
        super().__init__()
        given = tuple(float(weight) for weight in weights)
        total = sum(given)
        if not given or min(given) < 0 or not 0 < total < float("inf"):
            raise InvalidInputError(
                "weights of a polynomial kernel are numbers that are not negative, for the powers"
                f" 1, 2, … of the cosine, and not all zero; got {given}"
            )
        self.weights = tuple(weight / total for weight in given)
        self.compiled = False

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        cosine = cross * inverse_root(left) * inverse_root(right)
        return cross * series(cosine, self.weights)

    def variance(self, own: Tensor) -> Tensor:
        return own

    def plan(self, ii: Tensor) -> Plan:
        fused = keeps(self, NormalisedPolynomial, "of", "variance")
        return PolynomialPlan(self, ii) if fused else KernelPlan(self, ii)

    def extra_repr(self) -> str:
        return ", ".join(f"{weight:g}" for weight in self.weights)


class _InducingPolynomial(torch.autograd.Function):
    """The kernel of a symmetric matrix of inner products; it keeps the diagonal."""

    @staticmethod
    def forward(ctx: Any, ii: Tensor, weights: tuple[float, ...]) -> Tensor:
        own = ii.diagonal()
        inverse = inverse_root(own)
        cosine = (ii * inverse).mul_(inverse[:, None])
        ctx.weights = weights
        ctx.save_for_backward(ii, cosine)
        value = series(cosine, weights).mul_(ii)
        value.diagonal().copy_(own)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        ii, cosine = ctx.saved_tensors
        slope = series(cosine, steepness(ctx.weights)).mul_(cosine)
        weighted = (grad * ii).mul_(slope)
        weighted.diagonal().zero_()
        shared = (weighted.sum(0) + weighted.sum(1)).mul_(-0.5)
        result = slope.add_(series(cosine, ctx.weights)).mul_(grad)
        result.diagonal().copy_(grad.diagonal() + safe_divide(shared, ii.diagonal()))
        return result, None


def steepness(weights: Sequence[float]) -> tuple[float, ...]:
    """The coefficients of q′, from 0 up; one zero of a linear kernel."""
    return tuple(n * weight for n, weight in enumerate(weights))[1:] or (0.0,)


class PolynomialPlan(FusedPlan):
    """The kernel, and white noise after it."""

    def __init__(self, kernel: NormalisedPolynomial, ii: Tensor) -> None:
        self.polynomial = kernel
        super().__init__(kernel, ii)

    def inside(self, ii: Tensor) -> Tensor:
        result: Tensor = _InducingPolynomial.apply(ii, self.polynomial.weights)
        return result

    def pointwise(self) -> Pointwise:
        kernel = self.polynomial
        return PolynomialPointwise(kernel.weights, engine(compiled=kernel.compiled))


class PolynomialPointwise:
    """The kernel of rows, see :class:`convdkm.kernels.pointwise.Pointwise`."""

    def __init__(self, weights: tuple[float, ...], engine: Engine = PIECEWISE) -> None:
        self.parameters: tuple[Tensor | None, ...] = ()
        self.weights, self.slopes, self.engine = weights, steepness(weights), engine

    def value(self, cross: Tensor, inducing: Tensor, own: Tensor) -> Tensor:
        return self.engine.polynomial(cross, inducing, own, self.weights)

    def gradient(
        self, grad: Tensor, value: Tensor, blocks: tuple[Tensor, Tensor, Tensor], *, learned: bool
    ) -> PointwiseGradient:
        found = self.engine.polynomial_gradient(grad, blocks, (self.weights, self.slopes))
        return PointwiseGradient(*found, ())

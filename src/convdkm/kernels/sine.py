r"""The kernel of the sine: the Gram of infinitely many features :math:`\sin(\omega u + \varphi)`.

Of Gaussian u and v with variances a and b and covariance c, the difference and the sum of the two
phases are Gaussian too. With the means of their cosines,

.. math::
    e_- = E[\cos\omega(u - v)] = e^{-\omega^2(a + b - 2c)/2}, \qquad
    e_+ = E[\cos\omega(u + v)] = e^{-\omega^2(a + b + 2c)/2},

.. math::
    k = \tfrac12\left(e_- - \cos(2\varphi)\,e_+\right), \qquad
    \frac{\partial k}{\partial c} = \tfrac12\omega^2\left(e_- + \cos(2\varphi)\,e_+\right), \qquad
    \frac{\partial k}{\partial a} = \frac{\partial k}{\partial b} = -\tfrac12\omega^2 k.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convdkm.checks import check_positive_number
from convdkm.errors import InvalidInputError
from convdkm.kernels.base import Positive, WrittenOut
from convdkm.kernels.blocks import Partials, Side


class Sine(WrittenOut):
    r"""Kernel :math:`\sigma_w^2\,k + \sigma_b^2` of networks with a sine.

    .. math::
        k = \tfrac12\left(e^{-\omega^2(a + b - 2c)/2}
            - \cos(2\varphi)\,e^{-\omega^2(a + b + 2c)/2}\right)

    It is bounded, :math:`|k| \le 1`. In neural-tangents it is ``stax.Sin(A, ω, φ)`` with
    :math:`\sigma_w^2 = A^2`. The phase :math:`\pi/2` makes it the kernel of the cosine, and
    :math:`\pi/4` half of :class:`convdkm.SquaredExponential` with length scale :math:`1/\omega`.

    Args:
        frequency: ω.
        phase: φ.
        weight_variance: :math:`\sigma_w^2`; 1 if not given.
        bias_variance: :math:`\sigma_b^2`; none if not given.
        learn: learn those of the two variances that are given.
    """

    def __init__(
        self,
        frequency: float = 1.0,
        phase: float = 0.0,
        *,
        weight_variance: float | None = None,
        bias_variance: float | None = None,
        learn: bool = True,
    ) -> None:
        super().__init__()
        check_positive_number(frequency=frequency)
        if not math.isfinite(phase):
            raise InvalidInputError(f"the phase of a sine is a finite number, got {phase}")
        self.frequency, self.phase = float(frequency), float(phase)
        self.weight_variance = Positive.if_given("weight_variance", weight_variance, learn=learn)
        self.bias_variance = Positive.if_given("bias_variance", bias_variance, learn=learn)

    def factors(self) -> tuple[Positive | None, Positive | None]:
        return self.weight_variance, self.bias_variance

    def variance(self, own: Tensor) -> Tensor:
        opposite = torch.exp(-2 * self.frequency**2 * own)
        odd = -0.5 * torch.expm1(-2 * self.frequency**2 * own)
        return self.scaled(odd + self._even * opposite)

    def core(self, cross: Tensor, left: Side, right: Side) -> Tensor:
        # ½(e₋ − e₊) + sin²φ e₊; the difference is of numbers that may be almost the same.
        closer = torch.exp(self._exponent(cross.abs(), left, right))
        odd = torch.sign(cross) * closer * torch.expm1(-2 * self.frequency**2 * cross.abs()) * -0.5
        if not self._even:
            return odd
        return odd + self._even * torch.exp(self._exponent(-cross, left, right))

    def partials(self, cross: Tensor, left: Side, right: Side) -> Partials:
        value = self.core(cross, left, right)
        minus, plus = (torch.exp(self._exponent(each, left, right)) for each in (cross, -cross))
        half = 0.5 * self.frequency**2
        by_cross = half * (minus + (1 - 2 * self._even) * plus)
        return Partials(value, by_cross, -half * value, -half * value)

    @property
    def _even(self) -> float:
        """sin²φ, the share of the function that is even."""
        return math.sin(self.phase) ** 2

    def _exponent(self, cross: Tensor, left: Side, right: Side) -> Tensor:
        distance = left.variance + right.variance - 2 * cross
        return distance.clamp(min=0) * (-0.5 * self.frequency**2)

    def extra_repr(self) -> str:
        return f"frequency={self.frequency:g}, phase={self.phase:g}"

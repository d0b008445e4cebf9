r"""The normalised polynomial kernel.

A kernel of cosines is a power series with weights that are not negative, and they add up to its
variance. Its quadratic part relative to the linear one, :math:`\rho w_2/w_1`, says how nonlinear it
is where cosines are small; all that lies in higher powers is then variance that inducing points
cannot explain. Of the normalised Gaussian kernel with :math:`\gamma = 6` the two are 0.015 and
0.045 of the variance; here they can be all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from convdkm.errors import InvalidInputError
from convdkm.kernels.angular import Angular


class NormalisedPolynomial(Angular):
    r"""Normalised polynomial kernel.

    .. math:: k(x, y) = |x||y| \sum_{n=1}^N w_n \left(\frac{G_{xy}}{|x||y|}\right)^n,
              \qquad |x| = \sqrt{G_{xx}}, \quad \sum_n w_n = 1

    It keeps the norm of its input, :math:`k(x, x) = G_{xx}`, and is zero where an input is zero.

    Args:
        weights: :math:`w_1, \dots, w_N`, not negative; only their ratios matter.

    Attributes:
        weights: as given, divided by their sum.
    """

    keeps_norm = True

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

    def of_cosine(self, cosine: Tensor) -> Tensor:
        return cosine * series(cosine, self.weights)

    def slope(self, cosine: Tensor) -> Tensor:
        return series(cosine, [n * weight for n, weight in enumerate(self.weights, 1)])

    def extra_repr(self) -> str:
        return ", ".join(f"{weight:g}" for weight in self.weights)


def series(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """A polynomial in x; its coefficients from 0 up, at least one."""
    *lower, last = coefficients
    if not lower:
        return torch.full_like(x, last)
    total = x * last + lower[-1]
    for coefficient in lower[-2::-1]:
        total = total * x + coefficient
    return total

r"""Predictions for each training point from all others, in closed form.

With :math:`M = (K + \lambda I)^{-1}` and A = M Y, what the machine trained without point i misses
its target by is

.. math:: r_i = y_i - f_{-i}(x_i) = A_i / M_{ii}.

An eigendecomposition :math:`K = Q \Lambda Q^T` gives it for every λ: :math:`A = Q (\Lambda +
\lambda)^{-1} Q^T Y` and :math:`M_{ii} = \sum_k Q_{ik}^2 / (\Lambda_k + \lambda)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from convdkm.errors import InvalidInputError

GRID = tuple(10.0 ** (exponent / 2) for exponent in range(-12, 3))
"""Ridges tried, relative to the mean variance: 10⁻⁶ to 10, two a decade."""


@dataclass(frozen=True)
class LeaveOneOut:
    """How well each ridge of a grid predicts points that it was not given.

    Attributes:
        ridges: those that were tried.
        errors: mean square of what is missed, for each.
        accuracies: the share of points whose largest prediction is at their largest target.
        residuals: what is missed at the best ridge, ``(N, outputs)``.
    """

    ridges: tuple[float, ...]
    errors: tuple[float, ...]
    accuracies: tuple[float, ...]
    residuals: Tensor

    @property
    def best(self) -> int:
        """The index of the ridge with the smallest error."""
        return self.errors.index(min(self.errors))

    @property
    def ridge(self) -> float:
        """The ridge with the smallest error."""
        return self.ridges[self.best]

    @property
    def at_edge(self) -> bool:
        """Whether the best ridge is the first or the last of several: the grid may be too small."""
        return len(self.ridges) > 1 and self.best in (0, len(self.ridges) - 1)


def leave_one_out(kernel: Tensor, targets: Tensor, ridges: Sequence[float]) -> LeaveOneOut:
    """Try every ridge, in float64.

    Args:
        kernel: K, ``(N, N)``.
        targets: Y, ``(N, outputs)``.
        ridges: λ, absolute and positive.
    """
    if not ridges or not all(ridge > 0 for ridge in ridges):
        raise InvalidInputError(f"ridges must be positive numbers, at least one, got {ridges}")
    if len(kernel) < 2:
        raise InvalidInputError("leaving one out needs at least two points; give the ridge itself")
    targets = targets.to(torch.float64)
    values, vectors = torch.linalg.eigh(kernel.to(torch.float64))
    # The kernel has no negative eigenvalues but for rounding.
    values = values.clamp(min=0)
    inside, squares = vectors.T @ targets, vectors.square()

    def missed(ridge: float) -> Tensor:
        shrunk = 1 / (values + ridge)
        return (vectors @ (shrunk[:, None] * inside)) / (squares @ shrunk)[:, None]

    found = [missed(ridge) for ridge in ridges]
    errors = tuple(float(each.square().mean()) for each in found)
    right = [(targets - each).argmax(1) == targets.argmax(1) for each in found]
    accuracies = tuple(float(each.double().mean()) for each in right)
    return LeaveOneOut(tuple(ridges), errors, accuracies, found[errors.index(min(errors))])

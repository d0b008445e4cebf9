r"""Solving (K + λI) A = Y: by factorising, or by conjugate gradients where K does not fit.

With :math:`M = (K + \lambda I)^{-1}` and A = M Y, the residual of point i when it is predicted from
all others is

.. math:: r_i = y_i - f_{-i}(x_i) = A_i / M_{ii}.

An eigendecomposition :math:`K = Q \Lambda Q^T` gives it for every λ: :math:`A = Q (\Lambda +
\lambda)^{-1} Q^T Y` and :math:`M_{ii} = \sum_k Q_{ik}^2 / (\Lambda_k + \lambda)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from convdkm.errors import InvalidInputError, NumericalError
from convdkm.lab.baselines.base import Tell
from convdkm.numerics import cholesky, safe_divide

if TYPE_CHECKING:
    from convdkm.lab.baselines.kernels.store import KernelStore

GRID = tuple(10.0 ** (exponent / 2) for exponent in range(-12, 3))
"""Ridges tried, relative to the mean variance: 10⁻⁶ to 10, two a decade."""


def solve_directly(kernel: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """A in float64, by a Cholesky factor of K + λI."""
    matrix = kernel.to(torch.float64).clone()
    matrix.diagonal().add_(ridge)
    factor = cholesky(matrix, "the kernel matrix plus its ridge")
    return torch.cholesky_solve(targets.to(torch.float64), factor)


class PivotedCholesky:
    r"""A preconditioner: :math:`(L L^T + \lambda I)^{-1}` with L of at most ``rank`` columns.

    By Woodbury's identity it is :math:`\tfrac1\lambda (I - L (\lambda I + L^T L)^{-1} L^T)`. L is
    made of rows of K, at each step that of the point with the largest variance left.

    Attributes:
        columns: L, ``(N, rank)``.
    """

    def __init__(self, kernel: Tensor | KernelStore, rank: int, ridge: float) -> None:
        left = kernel.diagonal().clone()
        smallest = 1e-12 * float(left.max())
        columns = torch.zeros((len(kernel), 0), dtype=torch.float64)
        while columns.shape[1] < min(rank, len(kernel)) and float(left.max()) > smallest:
            pivot = int(left.argmax())
            column = (kernel[pivot] - columns @ columns[pivot]) / left[pivot].sqrt()
            columns = torch.cat([columns, column[:, None]], 1)
            left.sub_(column.square()).clamp_(min=0)
            left[pivot] = 0
        self.columns, self.ridge = columns, ridge
        inner = columns.T @ columns
        inner.diagonal().add_(ridge)
        self._factor = cholesky(inner, "the preconditioner")

    def __call__(self, vectors: Tensor) -> Tensor:
        """Applied to ``(N, outputs)``."""
        inner = torch.cholesky_solve(self.columns.T @ vectors, self._factor)
        return (vectors - self.columns @ inner) / self.ridge


class Solved(NamedTuple):
    """A ``(N, outputs)``, and the largest of the outputs' :math:`|Y - (K + λI) A| / |Y|`."""

    solution: Tensor
    iterations: int
    residual: float


def conjugate_gradients(
    kernel: Tensor | KernelStore,
    targets: Tensor,
    ridge: float,
    *,
    rank: int = 100,
    tolerance: float = 1e-6,
    iterations: int = 1000,
    tell: Tell | None = None,
) -> Solved:
    """A in float64, from products with K and some of its rows; all outputs go through K together.

    Args:
        kernel, targets, ridge: K, Y ``(N, outputs)`` and λ, which is positive.
        rank: columns of the :class:`PivotedCholesky` preconditioner; 0 for none.
        tolerance: of the residual of every output, relative to its targets.
        iterations: at most; a :class:`NumericalError` where they do not suffice.
        tell: called with a line now and then.
    """
    if not ridge > 0:
        raise InvalidInputError(f"conjugate gradients need a positive ridge, got {ridge}")
    targets = targets.to(torch.float64)
    precondition = PivotedCholesky(kernel, rank, ridge) if rank > 0 else torch.clone
    solution, residual = torch.zeros_like(targets), targets.clone()
    direction, scale = torch.zeros_like(targets), targets.norm(dim=0)
    before = torch.zeros_like(scale)
    done = 0
    while True:
        # An output whose targets are all zero has the solution zero, and nothing to divide by.
        error = float(safe_divide(residual.norm(dim=0), scale).max())
        if tell is not None and done and done % 10 == 0:
            tell(f"conjugate gradients: {done} steps, residual {error:.1e} (to {tolerance:.0e})")
        if error <= tolerance:
            return Solved(solution, done, error)
        if not error > tolerance or done == iterations:
            raise NumericalError(
                f"conjugate gradients reached a residual of {error:.1e} in {done} steps, not"
                f" {tolerance:.0e}; allow more, raise the ridge ({ridge:.3g}) or the"
                f" preconditioner's rank ({rank})"
            )
        conditioned = precondition(residual)
        now = (residual * conditioned).sum(0)
        direction = conditioned + direction * safe_divide(now, before)
        along = kernel @ direction + ridge * direction
        step = safe_divide(now, (direction * along).sum(0))
        solution += step * direction
        residual -= step * along
        before = now
        done += 1


@dataclass(frozen=True)
class LeaveOneOut:
    """How well each ridge predicts points that it was not given.

    The errors are mean squared residuals; the accuracies, the shares of points whose largest
    prediction is at their largest target; the residuals ``(N, outputs)``, those of the best ridge.
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
    def at_edge(self) -> bool:
        """Whether the best ridge is the first or the last of several: the grid may be too small."""
        return len(self.ridges) > 1 and self.best in (0, len(self.ridges) - 1)


def leave_one_out(kernel: Tensor, targets: Tensor, ridges: Sequence[float]) -> LeaveOneOut:
    """Predict each point from all others with every ridge λ, absolute and positive, in float64."""
    if not ridges or not all(ridge > 0 for ridge in ridges):
        raise InvalidInputError(f"ridges must be positive numbers, at least one, got {ridges}")
    if len(kernel) < 2:
        raise InvalidInputError("leaving one out needs at least two points; give the ridge itself")
    targets = targets.to(torch.float64)
    values, vectors = torch.linalg.eigh(kernel.to(torch.float64))
    # The kernel has no negative eigenvalues but for rounding.
    values = values.clamp(min=0)
    projected, squares = vectors.T @ targets, vectors.square()

    def residuals(ridge: float) -> Tensor:
        shrunk = 1 / (values + ridge)
        return (vectors @ (shrunk[:, None] * projected)) / (squares @ shrunk)[:, None]

    found = [residuals(ridge) for ridge in ridges]
    errors = tuple(float(each.square().mean()) for each in found)
    right = [(targets - each).argmax(1) == targets.argmax(1) for each in found]
    accuracies = tuple(float(each.double().mean()) for each in right)
    return LeaveOneOut(tuple(ridges), errors, accuracies, found[errors.index(min(errors))])

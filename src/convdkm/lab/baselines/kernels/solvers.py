r"""Solving (K + λI) A = Y: by factorising, or by conjugate gradients where K does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from convdkm.errors import InvalidInputError, NumericalError
from convdkm.lab.baselines.kernels.matrices import SymmetricMatrix
from convdkm.numerics import cholesky

Tell = Callable[[str], None]


def solve_directly(kernel: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """A in float64, by a Cholesky factor of K + λI."""
    matrix = kernel.to(torch.float64).clone()
    matrix.diagonal().add_(ridge)
    factor = cholesky(matrix, "the kernel matrix plus its ridge")
    return torch.cholesky_solve(targets.to(torch.float64), factor)


@dataclass(frozen=True)
class PivotedCholesky:
    r"""A preconditioner: :math:`(L L^T + \lambda I)^{-1}` with L of few columns.

    By Woodbury's identity it is
    :math:`\tfrac1\lambda (I - L (\lambda I + L^T L)^{-1} L^T)`.

    Attributes:
        columns: L, ``(N, rank)``.
        ridge: λ.
        factor: the Cholesky factor of :math:`\lambda I + L^T L`.
    """

    columns: Tensor
    ridge: float
    factor: Tensor

    @classmethod
    def of(cls, kernel: SymmetricMatrix, rank: int, ridge: float) -> PivotedCholesky:
        """From rows of K, at each step that of the point with the largest variance left."""
        left = kernel.diagonal().clone()
        smallest = 1e-12 * float(left.max())
        columns = torch.zeros((len(kernel), min(rank, len(kernel))), dtype=torch.float64)
        used = 0
        for step in range(columns.shape[1]):
            pivot = int(left.argmax())
            if float(left[pivot]) <= smallest:
                break
            known = columns[:, :step]
            column = (kernel.row(pivot) - known @ known[pivot]) / left[pivot].sqrt()
            columns[:, step] = column
            left.sub_(column.square()).clamp_(min=0)
            left[pivot] = 0
            used = step + 1
        columns = columns[:, :used].contiguous()
        inner = columns.T @ columns
        inner.diagonal().add_(ridge)
        return cls(columns, ridge, cholesky(inner, "the preconditioner"))

    def __call__(self, vectors: Tensor) -> Tensor:
        """Applied to ``(N, outputs)``."""
        inside = torch.cholesky_solve(self.columns.T @ vectors, self.factor)
        return (vectors - self.columns @ inside) / self.ridge


@dataclass(frozen=True)
class Solved:
    """What conjugate gradients gave.

    Attributes:
        solution: A, ``(N, outputs)``.
        iterations: products with K that were made.
        residual: the largest of the outputs' :math:`|Y - (K + λI) A| / |Y|`.
    """

    solution: Tensor
    iterations: int
    residual: float


def conjugate_gradients(
    kernel: SymmetricMatrix,
    targets: Tensor,
    ridge: float,
    *,
    rank: int = 100,
    tolerance: float = 1e-6,
    iterations: int = 1000,
    tell: Tell | None = None,
) -> Solved:
    """A in float64, from products with K alone; all outputs go through K together.

    Args:
        kernel: K.
        targets: Y, ``(N, outputs)``.
        ridge: λ, positive.
        rank: columns of the :class:`PivotedCholesky` preconditioner; 0 for none.
        tolerance: of the residual of every output, relative to its targets.
        iterations: at most.
        tell: called with a line now and then.

    Raises:
        NumericalError: where the tolerance is not met.
    """
    if not ridge > 0:
        raise InvalidInputError(f"conjugate gradients need a positive ridge, got {ridge}")
    targets = targets.to(torch.float64)
    precondition = PivotedCholesky.of(kernel, rank, ridge) if rank > 0 else None
    solution, residual = torch.zeros_like(targets), targets.clone()
    # An output whose targets are all zero has the solution zero.
    size = targets.norm(dim=0)
    scale = torch.where(size > 0, size, 1.0)
    direction = torch.zeros_like(targets)
    before = torch.ones_like(scale)
    error = float((residual.norm(dim=0) / scale).max())
    done = 0
    while error > tolerance and done < iterations:
        conditioned = residual if precondition is None else precondition(residual)
        now = (residual * conditioned).sum(0)
        direction = conditioned + direction * (now / before if done else torch.zeros_like(now))
        along = kernel.product(direction) + ridge * direction
        step = _ratio(now, (direction * along).sum(0))
        solution += step * direction
        residual -= step * along
        # Zero only where a solution is exact, and then nothing is left to divide.
        before = torch.where(now > 0, now, 1.0)
        error = float((residual.norm(dim=0) / scale).max())
        done += 1
        if tell is not None and done % 10 == 0:
            tell(f"conjugate gradients: {done} steps, residual {error:.1e} (to {tolerance:.0e})")
    if not error <= tolerance:
        raise NumericalError(
            f"conjugate gradients reached a residual of {error:.1e} in {done} steps, not"
            f" {tolerance:.0e}; allow more, raise the ridge ({ridge:.3g}) or the preconditioner's"
            f" rank ({rank})"
        )
    return Solved(solution, done, error)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below > 0, above / torch.where(below > 0, below, 1.0), 0.0)

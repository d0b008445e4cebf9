r"""Solving (K + λI) A = Y: by factorising, or by conjugate gradients where K does not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from convdkm.errors import InvalidInputError, NumericalError
from convdkm.lab.baselines.base import Tell
from convdkm.numerics import cholesky, safe_divide


class SymmetricMatrix(Protocol):
    """What conjugate gradients need of a kernel matrix of N points, all in float64.

    A tensor is one, and so is a :class:`~convdkm.lab.baselines.kernels.store.KernelStore`.
    """

    def __len__(self) -> int: ...

    def __matmul__(self, vectors: Tensor) -> Tensor: ...

    def __getitem__(self, row: int) -> Tensor: ...

    def diagonal(self) -> Tensor: ...


def solve_directly(kernel: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """A in float64, by a Cholesky factor of K + λI."""
    matrix = kernel.to(torch.float64).clone()
    matrix.diagonal().add_(ridge)
    factor = cholesky(matrix, "the kernel matrix plus its ridge")
    return torch.cholesky_solve(targets.to(torch.float64), factor)


class PivotedCholesky:
    r"""A preconditioner: :math:`(L L^T + \lambda I)^{-1}` with L of few columns.

    By Woodbury's identity it is
    :math:`\tfrac1\lambda (I - L (\lambda I + L^T L)^{-1} L^T)`.

    L is made of rows of K, at each step that of the point with the largest variance left.

    Args:
        kernel: K.
        rank: columns of L, at most.
        ridge: λ.

    Attributes:
        columns: L, ``(N, rank)``.
    """

    def __init__(self, kernel: SymmetricMatrix, rank: int, ridge: float) -> None:
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
        inside = torch.cholesky_solve(self.columns.T @ vectors, self._factor)
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
    precondition = PivotedCholesky(kernel, rank, ridge) if rank > 0 else torch.clone
    solution, residual = torch.zeros_like(targets), targets.clone()
    scale = targets.norm(dim=0)
    direction = torch.zeros_like(targets)
    before = torch.zeros_like(scale)
    # An output whose targets are all zero has the solution zero, and nothing to divide by.
    error = float(safe_divide(residual.norm(dim=0), scale).max())
    done = 0
    while error > tolerance and done < iterations:
        conditioned = precondition(residual)
        now = (residual * conditioned).sum(0)
        direction = conditioned + direction * safe_divide(now, before)
        along = kernel @ direction + ridge * direction
        step = safe_divide(now, (direction * along).sum(0))
        solution += step * direction
        residual -= step * along
        before = now
        error = float(safe_divide(residual.norm(dim=0), scale).max())
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

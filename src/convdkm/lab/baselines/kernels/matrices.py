r"""Symmetric kernel matrices, in memory or on disk, as the solvers see them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class SymmetricMatrix(Protocol):
    """What a solver needs of a kernel matrix of N points."""

    def __len__(self) -> int: ...

    def product(self, vectors: Tensor) -> Tensor:
        """K V in float64, for V ``(N, outputs)``."""
        ...

    def row(self, index: int) -> Tensor:
        """One row, ``(N,)`` in float64."""
        ...

    def diagonal(self) -> Tensor:
        """``(N,)`` in float64."""
        ...


class Dense:
    """A kernel matrix that is in memory.

    Args:
        values: ``(N, N)``, symmetric.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values.to(torch.float64)

    def __len__(self) -> int:
        return len(self.values)

    def product(self, vectors: Tensor) -> Tensor:
        """K V."""
        return self.values @ vectors

    def row(self, index: int) -> Tensor:
        """One row."""
        return self.values[index]

    def diagonal(self) -> Tensor:
        """The diagonal."""
        return self.values.diagonal()

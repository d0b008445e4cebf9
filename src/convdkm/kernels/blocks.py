"""What a kernel is worked out from, for every entry of a block, and what comes out of it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

SMALLEST_ROOT = 1e-18
"""Roots below it are inverted as if they were this, whose square is in the range of float32."""


class Side(NamedTuple):
    """The variances of one side of a block, their roots, and one over these.

    Where a variance is zero the inverse root is large, and finite: what it is multiplied by, the
    covariances and the derivatives by them, is zero there.

    Worked out before a compiled function is called: inside, a pixel's would be worked out anew for
    every number of its row.
    """

    variance: Tensor
    root: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, variance: Tensor) -> Side:
        """From variances."""
        root = variance.clamp(min=0).sqrt()
        return cls(variance, root, root.clamp(min=SMALLEST_ROOT).reciprocal())

    def plus(self, variance: float) -> Side:
        """The same with so much more variance."""
        return Side.of(self.variance + variance) if variance else self

    def part(self, piece: slice | int) -> Side:
        """The same for some rows."""
        return Side(*(each[piece] for each in self))


class Scratch:
    """Memory for what lies between, taken once for many blocks.

    To take it anew, and give it back, for each of them takes longer than what is done with it.
    """

    def __init__(self) -> None:
        self._held: Tensor | None = None

    def like(self, tensor: Tensor, count: int) -> tuple[Tensor, ...]:
        """So many tensors like one, to be overwritten."""
        needed = count * tensor.numel()
        if self._held is None or self._held.numel() < needed:
            self._held = tensor.new_empty(needed)
        return self._held[:needed].view(count, *tensor.shape).unbind()


class Partials(NamedTuple):
    """A kernel and its derivatives by the three numbers that it is a function of."""

    value: Tensor
    cross: Tensor
    left: Tensor
    right: Tensor

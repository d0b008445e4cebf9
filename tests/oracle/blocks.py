"""The three blocks of a Gram matrix, and how far two arrays are apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Blocks(NamedTuple):
    """``ii`` (P, P), ``it`` (N, P, *space) and the diagonal ``tt`` (N, *space), as in Eq. 6."""

    ii: Array
    it: Array
    tt: Array

    @property
    def space(self) -> tuple[int, ...]:
        return self.tt.shape[1:]

    @property
    def places(self) -> list[tuple[int, ...]]:
        """Every place of an image, as an index."""
        return list(np.ndindex(*self.space))


def gram_of_features(inducing: Array, images: Array) -> Blocks:
    """Eq. 1: means of products of features ``(P, M)`` and ``(N, M, *space)``."""
    points, width = inducing.shape
    count, space = images.shape[0], images.shape[2:]
    it, tt = np.zeros((count, points, *space)), np.zeros((count, *space))
    for place in np.ndindex(*space):
        here = images[(slice(None), slice(None), *place)]
        it[(slice(None), slice(None), *place)] = here @ inducing.T / width
        tt[(slice(None), *place)] = (here * here).sum(1) / width
    return Blocks(inducing @ inducing.T / width, it, tt)


def deviation(actual: Array, expected: Array) -> float:
    """Largest absolute difference, relative to the largest absolute value expected."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if actual.shape != expected.shape:
        raise AssertionError(f"shape {actual.shape}, expected {expected.shape}")
    size = np.abs(expected).max()
    return float(np.abs(actual - expected).max() / (size if size > 0 else 1.0))

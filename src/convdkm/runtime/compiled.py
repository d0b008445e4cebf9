"""Functions made by ``torch.compile``: one pass over memory for each result."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from convdkm.runtime.engine import DiagonalGradient, VarianceGradient, learned
from convdkm.runtime.for_rows import compiled_for_rows
from convdkm.runtime.maps import summed_products

_LOG = logging.getLogger(__name__)
_Made = TypeVar("_Made")


def _variance(rows: Tensor, inner: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    residual = (own - (rows * rows).sum(1)).clamp(min=0)
    return residual + (inner * inner).sum(1), residual


def _variance_gradient(
    rows: Tensor, inner: Tensor, grad: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    by_own = torch.where(residual == 0, 0, grad)
    return -2 * by_own[:, None] * rows, 2 * grad[:, None] * inner, by_own


def diagonal_variance(
    rows: Tensor, own: Tensor, roots: Tensor, shift: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See :meth:`Engine.diagonal_variance`; also of maps, where the others broadcast to them."""
    residual = (own - (rows * rows).sum(1)).clamp(min=0)
    inner = rows * roots if shift is None else rows * roots - shift
    return residual + (inner * inner).sum(1), residual


def _diagonal_gradient(
    rows: Tensor, grad: Tensor, residual: Tensor, roots: Tensor, shift: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    by_own = torch.where(residual == 0, 0, grad)
    inner = rows * roots if shift is None else rows * roots - shift
    weight = grad[:, None]
    return 2 * (weight * roots * inner - by_own[:, None] * rows), weight * rows, by_own


class Compiled:
    """See :class:`convdkm.runtime.elementwise.Engine`."""

    def __init__(self) -> None:
        self._variance = compiled_for_rows(_variance)
        self._variance_gradient = compiled_for_rows(_variance_gradient)
        self.diagonal_variance = compiled_for_rows(diagonal_variance, any_width=True)
        self._diagonal_gradient = compiled_for_rows(_diagonal_gradient, any_width=True)

    def variance(
        self, rows: Tensor, own: Tensor, spread: Tensor, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = self._variance(rows, learned(rows, spread, shift), own)
        return result

    def variance_gradient(
        self,
        grad: Tensor,
        by_product: Tensor,
        matrix: Tensor,
        saved: tuple[Tensor, Tensor, Tensor, Tensor | None],
    ) -> VarianceGradient:
        rows, residual, spread, shift = saved
        inner = learned(rows, spread, shift)
        total, inner, by_own = self._variance_gradient(rows, inner, grad, residual)
        total.addmm_(by_product, matrix).addmm_(inner, spread.T)
        by_shift = None if shift is None else -inner.sum(0)
        return VarianceGradient(total, by_own, summed_products(rows, inner), by_shift)

    def diagonal_gradient(
        self,
        grad: Tensor,
        by_product: Tensor,
        matrix: Tensor,
        saved: tuple[Tensor, Tensor, Tensor, Tensor | None],
    ) -> DiagonalGradient:
        rows, residual, roots, shift = saved
        total, weighted, by_own = self._diagonal_gradient(rows, grad, residual, roots, shift)
        total.addmm_(by_product, matrix)
        first = None if shift is None else weighted.sum(0)
        return DiagonalGradient(total, by_own, summed_products(rows, weighted), first)


def attempted(make: Callable[[], _Made]) -> _Made | None:
    """What ``make`` compiles; None, and a warning in the log, where nothing compiles."""
    try:
        return make()
    except Exception as error:  # the compiler's errors have no type in common
        _LOG.warning("nothing is compiled, PyTorch's own operations are used: %s", reason_of(error))
        return None


def reason_of(error: Exception) -> str:
    """The first line of what a compiler says, which may be hundreds."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@functools.cache
def compiled_engine() -> Compiled | None:
    """The compiled engine, tried out; None (and a warning in the log) where nothing compiles."""

    def make() -> Compiled:
        engine = Compiled()
        with torch.no_grad():
            engine.diagonal_variance(torch.zeros(24, 16), torch.ones(24), torch.ones(16), None)
        return engine

    return attempted(make)

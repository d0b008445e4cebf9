"""Functions made by ``torch.compile``: one pass over memory for each result."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from convdkm.elementwise.arccosine import ANGLE, evaluated, kernel_coefficients, lacking
from convdkm.elementwise.engine import (
    BlockGradient,
    DiagonalGradient,
    ReluGradient,
    VarianceGradient,
    learned,
    series,
)
from convdkm.elementwise.for_rows import Roots, compiled_for_rows
from convdkm.maps import summed_products

BLOCK = 16
"""Rows whose sum is written in place of them, where only the sum over all rows is asked for."""

_LOG = logging.getLogger(__name__)
_Made = TypeVar("_Made")


def _relu(cross: Tensor, inducing: Roots, own: Roots, offset: Tensor) -> Tensor:
    u = lacking(cross * inducing.inverse * own.inverse)
    series = evaluated(kernel_coefficients(cross.dtype), u)
    curved = inducing.root * own.root * (u * u.sqrt() * series)
    return math.pi * (cross.clamp(min=0) + curved) + offset


def _sine_and_supplement(cross: Tensor, inducing: Roots, own: Roots) -> tuple[Tensor, Tensor]:
    """s and π − θ."""
    if cross.dtype == torch.float64:
        norm = inducing.root * own.root
        sine = ((norm - cross) * (norm + cross)).clamp(min=0).sqrt()
        return sine, torch.atan2(cross, sine) + math.pi / 2
    cosine = cross * inducing.inverse * own.inverse
    u = lacking(cosine)
    root = u.sqrt()
    angle = root * evaluated(ANGLE, u)
    sine = inducing.root * own.root * root * (2 - u).sqrt()
    return sine, torch.where(cosine < 0, angle, math.pi - angle)


def _relu_gradient(
    grad: Tensor, cross: Tensor, inducing: Roots, own: Roots
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sine, supplement = _sine_and_supplement(cross, inducing, own)
    weighted = grad * sine
    return grad * supplement, weighted, own.by_variances(weighted.sum(1, keepdim=True)), grad.sum(1)


def _relu_gradient_by_blocks(
    grad: Tensor, cross: Tensor, inducing: Roots, own: Roots
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same for a multiple of :data:`BLOCK` rows, with sums over blocks of them."""
    shape = (-1, BLOCK, grad.shape[1])
    grad, cross = grad.view(shape), cross.view(shape)
    own = Roots(*(each.view(-1, BLOCK, 1) for each in own))
    sine, supplement = _sine_and_supplement(cross, inducing, own)
    weighted = grad * sine
    by_own = own.by_variances(weighted.sum(2, keepdim=True))
    return (grad * supplement).flatten(0, 1), weighted.sum(1), by_own.flatten(0, 1), grad.sum(2)


def _gaussian(cross: Tensor, inducing: Roots, own: Roots, gamma: Tensor) -> Tensor:
    cosine = cross * inducing.inverse * own.inverse
    return (gamma * (cosine - 1)).clamp(max=0).exp() * inducing.root * own.root


def _gaussian_gradient(  # noqa: PLR0917
    grad: Tensor, value: Tensor, cross: Tensor, inducing: Roots, own: Roots, gamma: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    product = grad * value
    by_cross = gamma * product * inducing.inverse * own.inverse
    weighted = product - by_cross * cross
    return by_cross, weighted, own.by_variances(weighted.sum(1, keepdim=True))


def _polynomial(cross: Tensor, inducing: Roots, own: Roots, weights: tuple[float, ...]) -> Tensor:
    return cross * series(cross * inducing.inverse * own.inverse, weights)


def _polynomial_gradient(  # noqa: PLR0917
    grad: Tensor,
    cross: Tensor,
    inducing: Roots,
    own: Roots,
    weights: tuple[float, ...],
    slopes: tuple[float, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    cosine = cross * inducing.inverse * own.inverse
    slope = series(cosine, slopes) * cosine
    weighted = -grad * cross * slope
    by_cross = grad * (series(cosine, weights) + slope)
    return by_cross, weighted, own.by_variances(weighted.sum(1, keepdim=True))


def _variance(rows: Tensor, inner: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    residual = (own - (rows * rows).sum(1)).clamp(min=0)
    return residual + (inner * inner).sum(1), residual


def _variance_gradient(
    rows: Tensor, inner: Tensor, grad: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    by_own = torch.where(residual == 0, 0, grad)
    return -2 * by_own[:, None] * rows, 2 * grad[:, None] * inner, by_own


def _diagonal_variance(
    rows: Tensor, own: Tensor, roots: Tensor, shift: Tensor | None
) -> tuple[Tensor, Tensor]:
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
    """See :class:`convdkm.elementwise.Engine`."""

    def __init__(self) -> None:
        self._relu = compiled_for_rows(_relu)
        self._relu_gradient = compiled_for_rows(_relu_gradient)
        self._relu_gradient_by_blocks = compiled_for_rows(_relu_gradient_by_blocks)
        self._gaussian = compiled_for_rows(_gaussian)
        self._gaussian_gradient = compiled_for_rows(_gaussian_gradient)
        self._polynomial = compiled_for_rows(_polynomial)
        self._polynomial_gradient = compiled_for_rows(_polynomial_gradient)
        self._variance = compiled_for_rows(_variance)
        self._variance_gradient = compiled_for_rows(_variance_gradient)
        self.diagonal_variance = compiled_for_rows(_diagonal_variance, any_width=True)
        self._diagonal_gradient = compiled_for_rows(_diagonal_gradient, any_width=True)

    def relu(self, cross: Tensor, inducing: Tensor, own: Tensor, offset: Tensor | None) -> Tensor:
        offset = cross.new_zeros(()) if offset is None else offset
        result: Tensor = self._relu(cross, Roots.of(inducing), Roots.of(own), offset)
        return result

    def relu_gradient(
        self, grad: Tensor, cross: Tensor, inducing: Tensor, own: Tensor
    ) -> ReluGradient:
        points = Roots.of(inducing)
        blocks = cross.shape[0] % BLOCK == 0
        gradient = self._relu_gradient_by_blocks if blocks else self._relu_gradient
        by_cross, weighted, by_own, sums = gradient(grad, cross, points, Roots.of(own))
        return ReluGradient(by_cross, points.by_variances(weighted.sum(0)), by_own, sums.sum())

    def gaussian(self, cross: Tensor, inducing: Tensor, own: Tensor, gamma: Tensor) -> Tensor:
        result: Tensor = self._gaussian(cross, Roots.of(inducing), Roots.of(own), gamma)
        return result

    def gaussian_gradient(
        self, grad: Tensor, value: Tensor, blocks: tuple[Tensor, Tensor, Tensor], gamma: Tensor
    ) -> BlockGradient:
        cross, points, own = blocks[0], Roots.of(blocks[1]), Roots.of(blocks[2])
        by_cross, weighted, by_own = self._gaussian_gradient(grad, value, cross, points, own, gamma)
        return BlockGradient(by_cross, points.by_variances(weighted.sum(0)), by_own)

    def polynomial(
        self, cross: Tensor, inducing: Tensor, own: Tensor, weights: tuple[float, ...]
    ) -> Tensor:
        result: Tensor = self._polynomial(cross, Roots.of(inducing), Roots.of(own), weights)
        return result

    def polynomial_gradient(
        self,
        grad: Tensor,
        blocks: tuple[Tensor, Tensor, Tensor],
        both: tuple[tuple[float, ...], tuple[float, ...]],
    ) -> BlockGradient:
        cross, points, own = blocks[0], Roots.of(blocks[1]), Roots.of(blocks[2])
        by_cross, weighted, by_own = self._polynomial_gradient(grad, cross, points, own, *both)
        return BlockGradient(by_cross, points.by_variances(weighted.sum(0)), by_own)

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
            engine.relu(torch.zeros(24, 16), torch.ones(16), torch.ones(24, 1), None)
        return engine

    return attempted(make)

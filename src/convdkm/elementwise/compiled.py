"""Functions made by ``torch.compile``: one pass over memory for each result."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from convdkm.elementwise.engine import (
    BlockGradient,
    DiagonalGradient,
    ReluGradient,
    VarianceGradient,
    learned,
    series,
)
from convdkm.maps import summed_products
from convdkm.numerics import safe_divide

_LOG = logging.getLogger(__name__)
_Made = TypeVar("_Made")

_ARCTAN = (
    0.999999984,
    -0.333330668,
    0.199924836,
    -0.142025705,
    0.106367541,
    -0.0749544544,
    0.0425876074,
    -0.0160050305,
    0.0028340643,
)
"""Coefficients in z² of arctan(z)/z on [0, 1]; the error of arctan is below 1.2e-8."""


def _angle(sine: Tensor, cross: Tensor) -> Tensor:
    """arctan(cross / sine) for a sine that is not negative, between −π/2 and π/2."""
    if sine.dtype == torch.float64:
        return torch.atan2(cross, sine)
    size = cross.abs()
    ratio = torch.minimum(size, sine) / torch.maximum(size, sine).clamp(min=1e-30)
    square = ratio * ratio
    series = torch.full_like(square, _ARCTAN[-1])
    for coefficient in _ARCTAN[-2::-1]:
        series = series * square + coefficient
    angle = series * ratio
    angle = torch.where(size > sine, math.pi / 2 - angle, angle)
    return torch.where(cross < 0, -angle, angle)


def _sine_and_supplement(cross: Tensor, inducing: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    sine = (own * inducing - cross * cross).clamp(min=0).sqrt()
    return sine, _angle(sine, cross) + math.pi / 2


def _relu(cross: Tensor, inducing: Tensor, own: Tensor, offset: Tensor) -> Tensor:
    sine, supplement = _sine_and_supplement(cross, inducing, own)
    return sine + supplement * cross + offset


def _relu_gradient(
    grad: Tensor, cross: Tensor, inducing: Tensor, own: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sine, supplement = _sine_and_supplement(cross, inducing, own)
    weighted = grad * sine
    by_own = torch.where(own == 0, 0, 0.5 * weighted.sum(1, keepdim=True) / own)
    return grad * supplement, weighted, by_own, grad.sum(1)


def _inverse_root(value: Tensor) -> Tensor:
    return torch.where(value > 0, value.clamp(min=1e-30).rsqrt(), 0)


def _gaussian(cross: Tensor, inducing: Tensor, own: Tensor, gamma: Tensor) -> Tensor:
    cosine = cross * _inverse_root(inducing) * _inverse_root(own)
    return (gamma * (cosine - 1)).clamp(max=0).exp() * inducing.sqrt() * own.sqrt()


def _gaussian_gradient(  # noqa: PLR0917
    grad: Tensor, value: Tensor, cross: Tensor, inducing: Tensor, own: Tensor, gamma: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    product = grad * value
    by_cross = gamma * product * _inverse_root(inducing) * _inverse_root(own)
    weighted = product - by_cross * cross
    by_own = torch.where(own == 0, 0, 0.5 * weighted.sum(1, keepdim=True) / own)
    return by_cross, weighted, by_own


def _polynomial(cross: Tensor, inducing: Tensor, own: Tensor, weights: tuple[float, ...]) -> Tensor:
    return cross * series(cross * _inverse_root(inducing) * _inverse_root(own), weights)


def _polynomial_gradient(  # noqa: PLR0917
    grad: Tensor,
    cross: Tensor,
    inducing: Tensor,
    own: Tensor,
    weights: tuple[float, ...],
    slopes: tuple[float, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    cosine = cross * _inverse_root(inducing) * _inverse_root(own)
    slope = series(cosine, slopes) * cosine
    weighted = -grad * cross * slope
    by_own = torch.where(own == 0, 0, 0.5 * weighted.sum(1, keepdim=True) / own)
    return grad * (series(cosine, weights) + slope), weighted, by_own


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


def compiled_for_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for any number of rows; once more for every P, whose loops are worth unrolling."""
    fast = torch.compile(function, options={"cpp.dynamic_threads": True})

    def call(*given: Tensor | tuple[float, ...] | None) -> Any:
        alone = [each.detach() if isinstance(each, Tensor) else each for each in given]
        tensors = [each for each in alone if isinstance(each, Tensor)]
        rows = tensors[0].shape[0]
        for tensor in tensors:
            if rows > 1 and tensor.ndim and tensor.shape[0] == rows:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return fast(*alone)

    return call


class Compiled:
    """See :class:`convdkm.elementwise.Engine`."""

    def __init__(self) -> None:
        self._relu, self._relu_gradient = (
            compiled_for_rows(_relu),
            compiled_for_rows(_relu_gradient),
        )
        self.gaussian = compiled_for_rows(_gaussian)
        self._gaussian_gradient = compiled_for_rows(_gaussian_gradient)
        self.polynomial = compiled_for_rows(_polynomial)
        self._polynomial_gradient = compiled_for_rows(_polynomial_gradient)
        self._variance = compiled_for_rows(_variance)
        self._variance_gradient = compiled_for_rows(_variance_gradient)
        self.diagonal_variance = compiled_for_rows(_diagonal_variance)
        self._diagonal_gradient = compiled_for_rows(_diagonal_gradient)

    def relu(self, cross: Tensor, inducing: Tensor, own: Tensor, offset: Tensor | None) -> Tensor:
        offset = cross.new_zeros(()) if offset is None else offset
        result: Tensor = self._relu(cross, inducing, own, offset)
        return result

    def relu_gradient(
        self, grad: Tensor, cross: Tensor, inducing: Tensor, own: Tensor
    ) -> ReluGradient:
        by_cross, weighted, by_own, sums = self._relu_gradient(grad, cross, inducing, own)
        return ReluGradient(
            by_cross, safe_divide(0.5 * weighted.sum(0), inducing), by_own, sums.sum()
        )

    def gaussian_gradient(
        self, grad: Tensor, value: Tensor, blocks: tuple[Tensor, Tensor, Tensor], gamma: Tensor
    ) -> BlockGradient:
        by_cross, weighted, by_own = self._gaussian_gradient(grad, value, *blocks, gamma)
        return BlockGradient(by_cross, safe_divide(0.5 * weighted.sum(0), blocks[1]), by_own)

    def polynomial_gradient(
        self,
        grad: Tensor,
        blocks: tuple[Tensor, Tensor, Tensor],
        both: tuple[tuple[float, ...], tuple[float, ...]],
    ) -> BlockGradient:
        by_cross, weighted, by_own = self._polynomial_gradient(grad, *blocks, *both)
        return BlockGradient(by_cross, safe_divide(0.5 * weighted.sum(0), blocks[1]), by_own)

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
        reason = str(error).strip().splitlines()
        _LOG.warning(
            "nothing is compiled, PyTorch's own operations are used: %s",
            reason[0] if reason else type(error).__name__,
        )
        return None


@functools.cache
def compiled_engine() -> Compiled | None:
    """The compiled engine, tried out; None (and a warning in the log) where nothing compiles."""

    def make() -> Compiled:
        engine = Compiled()
        with torch.no_grad():
            engine.relu(torch.zeros(24, 16), torch.ones(16), torch.ones(24, 1), None)
        return engine

    return attempted(make)

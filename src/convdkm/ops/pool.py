r"""Operations that collapse space (appendix E)."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from convdkm.errors import GramError
from convdkm.numerics import explained, factorised, inner_products, left_multiply, mix
from convdkm.ops.base import Blocks, Operation, Plan, require_shape
from convdkm.ops.gram import inducing_mean
from convdkm.ops.window import Window


class PoolPlan(Plan):
    """Averages over windows; the variance of the average by the corrected Nyström approximation.

    Attributes:
        window: None for all places.
        whitening: F⁻¹; None once the operation before has taken it over.
        factor: F, times what the operations after have given away.
        centre: the layer of a centring that follows, if any.
        shift: what it subtracts from F⁻¹ times the average, once that is constant.
    """

    first, last = "whitening", "factor"
    added = ("centre", "shift")
    centre: Any
    shift: Tensor | None

    def __init__(self, ii: Tensor, window: Window | None) -> None:
        super().__init__(ii)
        self.window, self.centre, self.shift = window, None, None
        self.factor, self.whitening = factorised(ii, "the Gram matrix G_ii")

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        if self.window is None:
            require_space(it)
        white = mix(self.whitening, it.to(tt.dtype))
        residual = (tt - explained(white)).clamp(min=0)
        if self.window is None:
            places = math.prod(tt.shape[1:])
            pooled, rest = white.flatten(2).mean(2), residual.flatten(1).sum(1) / places**2
        else:
            inside = self.window.counts(tt.shape[1:], tt)
            pooled = _window_sums(self.window, white) / inside.unsqueeze(1)
            rest = self.window.sum(residual) / inside.square()
        pooled = self._centred(pooled)
        return mix(self.factor, pooled), explained(pooled) + rest

    def _centred(self, pooled: Tensor) -> Tensor:
        mean = self.shift
        if self.centre is not None:
            mean = self.centre.mean(pooled.shape[1], lambda: inducing_mean(pooled), pooled.dtype)
        return pooled if mean is None else pooled - mean.reshape(-1, *(1,) * (pooled.ndim - 2))

    def frozen(self, **changes: Any) -> Operation:
        if self.centre is not None and self.centre.is_constant:
            changes |= {"centre": None, "shift": self.centre.constant_mean()}
        return super().frozen(**changes)

    def covariance(self, left: Blocks, right: Blocks, between: Tensor) -> Tensor:
        r"""Between the averages of two images.

        As in the variance, the inducing points explain what different places have in common; what
        they leave unexplained, :math:`R_{is,js}`, counts between equal places:
        :math:`\bar V_i^T \bar V_j + \tfrac1{w^2} \sum_s R_{is,js}`.
        """
        white = [mix(self.whitening, it) for it, _ in (left, right)]
        residual = between - inner_products(*white)
        if self.window is None:
            pooled = [self._centred(each.flatten(2).mean(2)) for each in white]
            return inner_products(*pooled) + residual.flatten(2).mean(2) / residual[0, 0].numel()
        inside = self.window.counts(between.shape[2:], between)
        sums = (_window_sums(self.window, each) for each in white)
        pooled = [self._centred(each / inside.unsqueeze(1)) for each in sums]
        return inner_products(*pooled) + _window_sums(self.window, residual) / inside.square()


def require_space(it: Tensor) -> None:
    """Raise unless a Gram has places."""
    if it.ndim == 2:
        raise GramError("this layer collapses space, but the incoming Gram has none left")


def _window_sums(window: Window, maps: Tensor) -> Tensor:
    return window.sum(maps.flatten(0, 1)).unflatten(0, (-1, maps.shape[1]))


class FlattenPlan(Plan):
    """A convolution whose filter is the whole image; its mean where there is no ``weight``."""

    def __init__(self, ii: Tensor, weight: Tensor | None) -> None:
        super().__init__(ii)
        self.weight = weight

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        require_space(it)
        if self.weight is None:
            return it.flatten(2).mean(2, dtype=tt.dtype), tt.flatten(1).mean(1)
        require_shape("weights for places", self.weight.shape[2:], it.shape[2:])
        return it.flatten(1) @ self.weight.flatten(1).T.to(it.dtype), tt.flatten(1).mean(1)

    def covariance(self, left: Blocks, right: Blocks, between: Tensor) -> Tensor:
        return between.flatten(2).mean(2)

    def premultiplied(self, matrix: Tensor) -> FlattenPlan | None:
        if self.weight is None:
            return None
        weight = left_multiply(matrix, self.weight.flatten(1)).reshape(-1, *self.weight.shape[1:])
        return self.but(weight=weight)

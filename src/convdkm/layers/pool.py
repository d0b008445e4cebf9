r"""Pooling, and the top layers that collapse space (appendix E)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convdkm.checks import check_positive
from convdkm.errors import InvalidInputError, NotInitialisedError
from convdkm.gram import Gram
from convdkm.layers.base import Layer, LazyState, require_inducing
from convdkm.numerics import standard_normal
from convdkm.ops.base import Plan
from convdkm.ops.inducing import mixed
from convdkm.ops.pool import FlattenPlan, PoolPlan
from convdkm.ops.window import Padding, Size, Window


class AveragePool(Layer):
    r"""Average pooling over a window, with the corrected Nyström approximation.

    The variance of an average needs the covariance of every two pixels in its window, of which
    only the diagonal is stored; the rest is taken from the inducing points,
    :math:`G_{tt} \approx G_{ti} G_{ii}^{-1} G_{it} + D`, with the diagonal D making up what is
    missing from g_tt:

    .. math:: \Lambda_{it} = \frac1w\sum_{s} G_{it,s}, \qquad
              \lambda_{tt} = \Lambda_{ti} G_{ii}^{-1} \Lambda_{it} + \frac1{w^2}\sum_s D_s

    with w the number of places of the window inside the image.

    Args:
        kernel_size: size of the window.
        stride: its step; the size of the window by default.
        padding: as in :class:`Conv`; places outside the image are left out of the average.
        ndim: number of spatial axes.
    """

    def __init__(
        self, kernel_size: Size, *, stride: Size | None = None, padding: Padding = 0, ndim: int = 2
    ) -> None:
        super().__init__()
        self.window = Window.of(
            kernel_size, kernel_size if stride is None else stride, padding, 1, ndim
        )
        for size, pads in zip(self.window.size, self.window.padding, strict=True):
            if max(pads) >= size:
                raise InvalidInputError(
                    f"padding {max(pads)} leaves windows of size {size} wholly outside the image"
                )

    def plan(self, ii: Tensor) -> Plan:
        return PoolPlan(ii, self.window)

    def extra_repr(self) -> str:
        return str(self.window)


class GlobalAveragePool(Layer):
    """Average over all places of an image (appendix E.3); leaves a Gram without space."""

    def plan(self, ii: Tensor) -> Plan:
        return PoolPlan(ii, None)


class Flatten(LazyState):
    r"""The linear top layer (appendix E.1): a separate weight for every place of the image.

    .. math::
        \Lambda^{ii}_{ij} = \tfrac1S \sum_s \sum_{i'j'} C_{si,i'} C_{sj,j'} G^{ii}_{i'j'}, \quad
        \Lambda^{it}_{i,j} = \tfrac1S \sum_s \sum_{i'} C_{si,i'} G^{it}_{i',js}, \quad
        \lambda^{tt}_{i} = \tfrac1S \sum_s G^{tt}_{is,is}

    Args:
        out_inducing: with mixing weights: :math:`P_i` of the outgoing Gram. Without (None), each
            inducing point stands for the image that is itself everywhere, :math:`C_s = I`.
        divided: learn :math:`\sqrt{P_i}\,C`, as in :class:`Conv`.

    Mixing weights take their shape from the images, at :meth:`initialise` or ``load_state_dict``.
    """

    weight: Tensor | None

    def __init__(self, out_inducing: int | None = None, *, divided: bool = False) -> None:
        super().__init__()
        if out_inducing is not None:
            check_positive(out_inducing=out_inducing)
        self.out_inducing, self.divided = out_inducing, divided
        self.register_parameter("weight", None)

    def lazy_state(self) -> tuple[str, ...]:
        return () if self.out_inducing is None else ("weight",)

    def initialise(self, gram: Gram, generator: torch.Generator | None = None) -> Gram:
        if self.out_inducing is not None:
            shape = (self.out_inducing, gram.num_inducing, *gram.space)
            drawn = standard_normal(shape, generator).to(gram.device)
            divisor = gram.num_inducing**0.5 if self.divided else 1.0
            self.materialise("weight", drawn * (divisor * gram.num_inducing**-0.5))
        return self(gram)

    def plan(self, ii: Tensor) -> Plan:
        if self.out_inducing is None:
            return FlattenPlan(ii, None)
        if self.weight is None:
            raise NotInitialisedError(
                "the weights of a linear top layer take their shape from the images; call"
                " initialise(images, labels) on the model, or load a state_dict first"
            )
        require_inducing(ii, self.weight.shape[1])
        weight = self.weight / len(ii) ** 0.5 if self.divided else self.weight
        return FlattenPlan(mixed(weight, ii), weight / math.prod(weight.shape[2:]))

    def extra_repr(self) -> str:
        return "" if self.out_inducing is None else f"out_inducing={self.out_inducing}"

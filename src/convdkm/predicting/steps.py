r"""The steps of a folded machine: each maps the blocks :math:`G_{it}` and :math:`g_{tt}`.

They do what the plans of :mod:`convdkm.layers` do in evaluation, with everything that is constant
multiplied out. While a program is exported they use plain operations, else the elementwise
functions of :mod:`convdkm.runtime.elementwise`.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from convdkm.choices import Border
from convdkm.errors import GramError
from convdkm.kernels import Angular, ArcCosine, Kernel
from convdkm.kernels.blocks import Side
from convdkm.kernels.pointwise import value_of_rows
from convdkm.layers.conv import window_variance
from convdkm.layers.pool import require_space
from convdkm.layers.window import Window
from convdkm.numerics import explained
from convdkm.predicting.base import (
    KINDS,
    Blocks,
    Folded,
    convolved,
    known,
    product,
    tracing,
)
from convdkm.predicting.functions import angular, functions, inverse_root, variance
from convdkm.runtime.maps import as_rows, from_rows


class Step(Folded):
    """Maps the data blocks."""

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        raise NotImplementedError


def _spread(it: Tensor, *constants: Tensor | None) -> list[Tensor | None]:
    """Numbers of the inducing points, in a shape that broadcasts to ``it``."""
    shape = (-1, *(1,) * (it.ndim - 2))
    return [None if constant is None else constant.reshape(shape) for constant in constants]


@known
class FoldedPointwise(Step):
    """A kernel of every entry.

    Args:
        kernel: the kernel, which nobody else changes.
        inducing: the diagonal of the inducing block.
    """

    kernel: Kernel
    inducing: Tensor

    def __init__(self, *, kernel: Kernel, inducing: Tensor) -> None:
        super().__init__()
        self.kernel = kernel
        self.constants(inducing=inducing)

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        kernel, own = self.kernel, self.kernel.variance(tt)
        if tracing() or not kernel.is_written_out:
            inducing = self.inducing.reshape(-1, *(1,) * (it.ndim - 2))
            return kernel.of(it, inducing, tt.unsqueeze(1)), own
        sides = Side.of(self.inducing), Side.of(tt.reshape(-1, 1))
        rows = kernel.scaled(value_of_rows(kernel, as_rows(it), *sides))
        return from_rows(rows, it.shape[0], it.shape[2:]), own


@known
class FoldedAngularConv(Step):
    r"""A kernel of cosines that grows with its inputs, white noise and a convolution.

    Args:
        kernel: the kernel, of which κ is used.
        weight: ``(Q, P, *size)``, with every factor taken in, :math:`\sqrt{G_{ii}}` too.
        inverse: :math:`G_{ii}^{-1/2}`, ``(P,)``; None if the step before has taken it over.
        offset: what is added to the kernel before the convolution, ``(P,)``.
        slope, intercept: of the outgoing variances as a function of the incoming ones.
        window, border: see :class:`convdkm.Conv`.
    """

    settings = ("slope", "intercept", "window", "border")
    numbers = ("slope", "intercept")
    kernel: Angular
    weight: Tensor
    inverse: Tensor | None
    offset: Tensor | None
    compiled = False

    def __init__(
        self,
        *,
        weight: Tensor,
        slope: float,
        intercept: float,
        window: Window,
        border: Border,
        kernel: Angular,
        inverse: Tensor | None = None,
        offset: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.slope, self.intercept, self.window, self.border = slope, intercept, window, border
        self.kernel = kernel
        self.constants(weight=weight, inverse=inverse, offset=offset)

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        if tracing():
            inverse, offset = _spread(it, self.inverse, self.offset)
            maps = angular(self.kernel, it, inverse, tt.unsqueeze(1), offset)
        else:
            value = functions(compiled=self.compiled).angular
            own = tt.reshape(-1, 1)
            rows = value(self.kernel, as_rows(it), self.inverse, own, self.offset)
            maps = from_rows(rows, it.shape[0], it.shape[2:])
        own = window_variance(self.window, tt * self.slope + self.intercept, self.border)
        return convolved(self.window, maps, self.weight), own


def _earlier_relu_conv(**arguments: Any) -> FoldedAngularConv:
    """As files of earlier versions have it."""
    return FoldedAngularConv(kernel=ArcCosine(), **arguments)


KINDS["FoldedReluConv"] = _earlier_relu_conv


@known
class FoldedConv(Step):
    """A convolution.

    Args:
        weight: ``(Q, P, *size)``.
        factor: what the variances are multiplied by.
        window, border: see :class:`convdkm.Conv`.
    """

    settings = ("factor", "window", "border")
    numbers = ("factor",)
    weight: Tensor

    def __init__(self, *, weight: Tensor, factor: float, window: Window, border: Border) -> None:
        super().__init__()
        self.factor, self.window, self.border = factor, window, border
        self.constants(weight=weight)

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        own = window_variance(self.window, tt, self.border) * self.factor
        return convolved(self.window, it, self.weight), own


@known
class FoldedMix(Step):
    """``it ← matrix · it``, where a vector stands for a diagonal matrix."""

    matrix: Tensor

    def __init__(self, *, matrix: Tensor) -> None:
        super().__init__()
        self.constants(matrix=matrix)

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        return product(self.matrix, it), tt


@known
class FoldedNoise(Step):
    """``tt ← slope · tt + intercept``."""

    settings = ("slope", "intercept")
    numbers = settings

    def __init__(self, *, slope: float, intercept: float) -> None:
        super().__init__()
        self.slope, self.intercept = slope, intercept

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        return it, tt * self.slope + self.intercept


@known
class FoldedGram(Step):
    r"""A learned Gram, centred or not, times one number.

    With :math:`Q = E\Sigma T^T` the incoming V is turned to :math:`E^TV`, so that
    :math:`|Q^TV| = |\Sigma E^TV|` takes no product of matrices.

    .. math:: G_{it} = M V + m, \qquad
              g_{tt} = f\left(\max(k_{tt} - |V|^2, 0) + |\Sigma V - u|^2\right)

    Args:
        matrix: M, ``(P', P)``.
        squares: :math:`\Sigma^2`, ``(P,)``.
        shift: u, ``(P,)``; zero if not given.
        offset: m, ``(P',)``; zero if not given.
        factor: f.
    """

    settings = ("factor",)
    numbers = settings
    matrix: Tensor
    squares: Tensor
    shift: Tensor | None
    offset: Tensor | None
    compiled = False

    def __init__(
        self,
        *,
        matrix: Tensor,
        squares: Tensor,
        factor: float,
        shift: Tensor | None = None,
        offset: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.factor = factor
        self.constants(matrix=matrix, squares=squares, shift=shift, offset=offset)

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        if tracing():
            squares, shift = _spread(it, self.squares, self.shift)
            assert squares is not None
            value = variance(it, tt, squares, shift)
        else:
            own = functions(compiled=self.compiled).variance
            value = own(as_rows(it), tt.flatten(), self.squares, self.shift).reshape(tt.shape)
        return product(self.matrix, it, self.offset), value * self.factor


@known
class FoldedCentre(Step):
    """With U the incoming block: ``G_it ← F U + m`` and ``g_tt ← max(g_tt − |U|², 0) + |U − u|²``.

    Args:
        matrix: F.
        shift: u.
        offset: m = −F u.
    """

    matrix: Tensor
    shift: Tensor
    offset: Tensor

    def __init__(self, *, matrix: Tensor, shift: Tensor, offset: Tensor) -> None:
        super().__init__()
        self.constants(matrix=matrix, shift=shift, offset=offset)

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        centred = it - self.shift.reshape(-1, *(1,) * (it.ndim - 2))
        residual = (tt - explained(it)).clamp(min=0)
        return product(self.matrix, it, self.offset), residual + explained(centred)


@known
class FoldedNorm(Step):
    """Multiplies every pixel by ``constant`` and by one over its own norm, or that of its image.

    Args:
        constant: Ψ/A as far as it is constant: a number, or one for every place.
        own: the norm that depends on the image: ``"none"``, ``"image"`` or ``"local"``.
    """

    settings = ("own",)
    constant: Tensor | None

    def __init__(self, *, own: str, constant: Tensor | None = None) -> None:
        super().__init__()
        self.own = own
        self.constants(constant=constant)

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        scale = self.constant
        if scale is not None and scale.ndim and scale.shape != tt.shape[1:]:
            raise GramError(
                f"this layer has numbers for each of {tuple(scale.shape)}, but the incoming Gram"
                f" has {tuple(tt.shape[1:])}; were the images of another size?"
            )
        if self.own != "none":
            places = tuple(range(1, tt.ndim))
            image = self.own == "image" and places
            inverse = _inverse_or_zero(tt.mean(places, keepdim=True) if image else tt)
            scale = inverse if scale is None else inverse * scale
        if scale is None:
            return it, tt
        scale = scale.expand(tt.shape)
        return it * scale.unsqueeze(1), tt * scale.square()


def _inverse_or_zero(variance: Tensor) -> Tensor:
    return inverse_root(variance).masked_fill(variance <= 0, 0)


@known
class FoldedPool(Step):
    """An average over windows, or over all places; see :class:`convdkm.AveragePool`.

    Args:
        factor: F, with the incoming block being whitened, F⁻¹G_it.
        window: None for all places.
    """

    settings = ("window",)
    factor: Tensor

    def __init__(self, *, factor: Tensor, window: Window | None) -> None:
        super().__init__()
        self.window = window
        self.constants(factor=factor)

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        residual = (tt - explained(it)).clamp(min=0)
        if self.window is None:
            require_space(it)
            pooled = it.flatten(2).mean(2)
            own = residual.flatten(1).sum(1) / math.prod(tt.shape[1:]) ** 2
        else:
            inside = self.window.counts(tt.shape[1:], tt)
            sums = self.window.sum(it.flatten(0, 1)).unflatten(0, (-1, it.shape[1]))
            pooled = sums / inside.unsqueeze(1)
            own = self.window.sum(residual) / inside.square()
        return product(self.factor, pooled), explained(pooled) + own


@known
class FoldedFlatten(Step):
    """The linear top layer: a weight for every place, or the mean over the places."""

    weight: Tensor | None

    def __init__(self, *, weight: Tensor | None = None) -> None:
        super().__init__()
        self.constants(weight=weight)

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        require_space(it)
        own = tt.flatten(1).mean(1)
        if self.weight is None:
            return it.flatten(2).mean(2), own
        if it.shape[1:] != self.weight.shape[1:]:
            raise GramError(
                f"this layer was made for places {tuple(self.weight.shape[2:])}, but the incoming"
                f" Gram has {tuple(it.shape[2:])}; were the images of another size?"
            )
        return it.flatten(1) @ self.weight.flatten(1).T, own

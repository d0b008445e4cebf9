"""From a kernel to its folded form."""

from __future__ import annotations

import torch

from convdkm.folded.base import FoldedList
from convdkm.folded.kernels import (
    FoldedArcCosine,
    FoldedIsotropic,
    FoldedKernel,
    FoldedLinear,
    FoldedNormalisedGaussian,
    FoldedNormalisedPolynomial,
    FoldedProduct,
    FoldedSum,
)
from convdkm.kernels import (
    ArcCosine,
    ConvexCombination,
    Isotropic,
    Kernel,
    Linear,
    Matern,
    NormalisedGaussian,
    NormalisedPolynomial,
    Product,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    Sum,
)
from convdkm.kernels.base import Positive
from convdkm.layers.base import keeps


class UnknownKernelError(Exception):
    """A kernel that has no folded form; the message is its name."""


def number(value: Positive | None, otherwise: float = 1.0) -> float:
    """A parameter of a kernel."""
    return otherwise if value is None else float(value.log_value.exp())


def folded_kernel(kernel: Kernel) -> FoldedKernel:
    """The folded form; raises :class:`UnknownKernelError` where there is none."""
    kind = type(kernel)
    if not keeps(kernel, kind, "of", "variance"):
        raise UnknownKernelError(kind.__name__)
    if isinstance(kernel, ArcCosine) and kind is ArcCosine:
        slope, intercept = number(kernel.weight_variance), number(kernel.bias_variance, 0.0)
        return FoldedArcCosine(order=kernel.order, slope=slope, intercept=intercept)
    if kind is Linear:
        return FoldedLinear()
    if isinstance(kernel, Scaled) and kind is Scaled:
        inner = FoldedList(kernel0=folded_kernel(kernel.kernel))
        return FoldedSum(kernels=inner, weights=(number(kernel.factor),))
    if isinstance(kernel, (Sum, ConvexCombination)) and kind in (Sum, ConvexCombination):
        count = len(kernel.kernels)
        weights = (
            tuple(torch.softmax(kernel.logits, 0).tolist())
            if isinstance(kernel, ConvexCombination)
            else (1.0,) * count
        )
        return FoldedSum(kernels=_several(kernel), weights=weights)
    if isinstance(kernel, Product) and kind is Product:
        return FoldedProduct(kernels=_several(kernel))
    return _of_distance(kernel)


def _several(kernel: Sum | Product | ConvexCombination) -> FoldedList:
    parts = [folded_kernel(each) for each in kernel.kernels if isinstance(each, Kernel)]
    return FoldedList(**{f"kernel{index}": part for index, part in enumerate(parts)})


def _of_distance(kernel: Kernel) -> FoldedKernel:
    kind = type(kernel)
    if isinstance(kernel, NormalisedGaussian) and kind is NormalisedGaussian:
        return FoldedNormalisedGaussian(gamma=number(kernel.gamma))
    if isinstance(kernel, NormalisedPolynomial) and kind is NormalisedPolynomial:
        return FoldedNormalisedPolynomial(weights=kernel.weights)
    if not isinstance(kernel, Isotropic):
        raise UnknownKernelError(kind.__name__)
    if kind is SquaredExponential:
        form, shape = "squared-exponential", 0.0
    elif isinstance(kernel, Matern) and kind is Matern:
        form, shape = "matern", kernel.smoothness
    elif isinstance(kernel, RationalQuadratic) and kind is RationalQuadratic:
        form, shape = "rational-quadratic", number(kernel.alpha)
    else:
        raise UnknownKernelError(kind.__name__)
    precision, scale = number(kernel.lengthscale) ** -2, number(kernel.scale)
    return FoldedIsotropic(form=form, precision=precision, scale=scale, shape=shape)

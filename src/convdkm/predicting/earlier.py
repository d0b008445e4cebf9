"""Files of earlier versions: what they name, as the operations of this one.

They had classes of their own for folded machines, whose arguments are known here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from convdkm.head import HeadPlan
from convdkm.kernels import (
    ArcCosine,
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
from convdkm.likelihoods import Categorical, Gaussian
from convdkm.likelihoods.softmax import NODES
from convdkm.ops.base import Operation, constant
from convdkm.ops.chain import Chain, SkipPlan
from convdkm.ops.conv import (
    ConvPlan,
    ImageMap,
    ImageScaling,
    MixPlan,
    PatchesPlan,
    VectorsPlan,
)
from convdkm.ops.gram import ProjectPlan
from convdkm.ops.kernel import KernelConvPlan, KernelPlan, NoisePlan
from convdkm.ops.norm import NormPlan
from convdkm.ops.pool import FlattenPlan, PoolPlan
from convdkm.predicting.describing import EARLIER
from convdkm.predicting.predictor import Predictor


def _made(kind: type[Operation], /, **attributes: Any) -> Any:
    operation = kind.__new__(kind)
    for name, value in {**dict.fromkeys(kind.added), **attributes}.items():
        setattr(operation, name, value)
    return constant(operation)


def _factor(value: float) -> Tensor | None:
    return None if value == 1 else torch.tensor(value, dtype=torch.float64)


def _isotropic(form: str, precision: float, scale: float, shape: float) -> Kernel:
    length = precision**-0.5
    if form == "matern":
        return Matern(shape, length, scale=scale)
    if form == "rational-quadratic":
        return RationalQuadratic(shape, length, scale=scale)
    return SquaredExponential(length, scale=scale)


def _chain(steps: list[Any], names: tuple[str, ...]) -> Operation:
    parts = nn.ModuleList(steps[: len(names)])
    return _made(Chain, names=tuple((name,) for name in names), parts=parts)


def _skip(weight: float, body_factor: float, short_factor: float, **parts: nn.Module) -> Operation:
    factors = {"body_factor": _factor(body_factor), "short_factor": _factor(short_factor)}
    return _made(SkipPlan, weight=torch.tensor(weight, dtype=torch.float64), **factors, **parts)


def _conv(weight: Tensor, factor: float, **geometry: Any) -> Any:
    rest = {"times": 1.0, "left": None, "norm": None, "factor": _factor(factor)}
    return _made(ConvPlan, mixing=weight, **rest, **geometry)


def _pointwise(kernel: Kernel, inducing: Tensor | None) -> Any:
    rest = {"noises": (), "joins": False}
    return _made(KernelPlan, kernel=kernel, inducing=inducing, **rest)


def _angular_conv(
    *,
    weight: Tensor,
    slope: float,
    intercept: float,
    kernel: Kernel | None = None,
    inverse: Tensor | None = None,
    offset: Tensor | None = None,
    **geometry: Any,
) -> Operation:
    both = _made(
        KernelConvPlan,
        kernel=_pointwise(ArcCosine() if kernel is None else kernel, None),
        conv=_conv(weight, 1.0, **geometry),
        is_scaled=True,
        shift=offset,
        slope=torch.tensor(slope, dtype=torch.float64),
        intercept=torch.tensor(intercept, dtype=torch.float64),
    )
    if inverse is None:
        return both
    return _chain([_made(MixPlan, matrix=inverse), both], ("", ""))


def _project(roots: Tensor, matrix: Tensor, factor: float = 1.0, **shifts: Any) -> Operation:
    return ProjectPlan(None, roots, matrix, factor=_factor(factor), **shifts).frozen()


def _norm(own: Any, constant: Tensor | None = None) -> Operation:
    return _made(NormPlan, inducing=None, norm=None, is_number=False, kind=own, shared=constant)


def _categorical(samples: int = NODES, nodes: Tensor | None = None) -> nn.Module:
    return Categorical(2, samples=samples if nodes is None else len(nodes))


def _gaussian(noise: float, codes: Tensor | None = None) -> nn.Module:
    return Gaussian(1, noise=noise, learn_noise=False, classes=codes is not None)


def _predictor(head: Any, outcome: Any, **rest: Any) -> nn.Module:
    outcome.num_outputs = len(head.mean)
    return Predictor(head=head, outcome=outcome, **rest).to(head.mean.dtype)


EARLIER |= {
    "FoldedArcCosine": lambda order, slope, intercept: ArcCosine(
        order, weight_variance=slope, bias_variance=intercept or None, learn=False
    ),
    "FoldedLinear": Linear,
    "FoldedSum": lambda kernels, weights: Sum(*map(Scaled, kernels, weights)),
    "FoldedProduct": lambda kernels: Product(*kernels),
    "FoldedIsotropic": _isotropic,
    "FoldedNormalisedGaussian": NormalisedGaussian,
    "FoldedNormalisedPolynomial": NormalisedPolynomial,
    "FoldedList": lambda **parts: list(parts.values()),
    "FoldedChain": _chain,
    "FoldedSkip": _skip,
    "FoldedPointwise": _pointwise,
    "FoldedAngularConv": _angular_conv,
    "FoldedReluConv": _angular_conv,
    "FoldedConv": _conv,
    "FoldedMix": lambda matrix: _made(MixPlan, matrix=matrix),
    "FoldedNoise": lambda slope, intercept: _made(
        NoisePlan, relative=slope - 1, absolute=intercept
    ),
    "FoldedGram": lambda squares, **rest: _project(squares.sqrt(), **rest),
    "FoldedCentre": lambda shift, **rest: _project(torch.ones_like(shift), shift=shift, **rest),
    "FoldedNorm": _norm,
    "FoldedPool": lambda factor, window: _made(
        PoolPlan, whitening=None, factor=factor, window=window
    ),
    "FoldedFlatten": lambda weight=None: _made(FlattenPlan, weight=weight),
    "FoldedScaling": lambda factor, offset: ImageScaling(factor, offset).frozen(),
    "FoldedWhitening": lambda mean, matrix: ImageMap(mean, matrix).frozen(),
    "FoldedPatches": lambda weight, window, border: PatchesPlan(weight, window, border).frozen(),
    "FoldedVectors": lambda weight: VectorsPlan(weight).frozen(),
    "FoldedHead": lambda mean, spread: _made(HeadPlan, whitening=None, mean=mean, spread=spread),
    "FoldedCategorical": _categorical,
    "FoldedBayes": _gaussian,
    "FoldedGaussian": _gaussian,
    "Predictor": _predictor,
}

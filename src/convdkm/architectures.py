"""The table of models: each is a few readable lines of composed layers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from convdkm.checks import check_choice, one_per_layer
from convdkm.choices import (
    Border,
    Covariance,
    DataNorm,
    DataScale,
    Expectation,
    HeadKL,
    InducingChoice,
    InducingNorm,
    InducingScale,
    LikelihoodName,
    MixingInit,
    Parameterisation,
    Statistics,
    Top,
)
from convdkm.errors import InvalidInputError
from convdkm.head import GPHead
from convdkm.kernels import ArcCosine, Kernel
from convdkm.layers.base import Layer
from convdkm.layers.compose import Sequential, Skip
from convdkm.layers.conv import Conv, Mix
from convdkm.layers.gram_layer import GramLayer
from convdkm.layers.input import PatchInput, VectorInput
from convdkm.layers.noise import Noise
from convdkm.layers.norm import Centre, Norm
from convdkm.layers.pool import Flatten, GlobalAveragePool
from convdkm.likelihoods import Categorical, Gaussian, Likelihood
from convdkm.model import DeepKernelMachine

PUBLISHED: dict[str, Any] = {
    "strides": (2, 2, 2),
    "border": "inside",
    "kernel": ArcCosine(weight_variance=1.0, bias_variance=0.1),
    "jitter": 1e-4,
    "learn_gram_scale": True,
    "divide_gram": True,
    "statistics": "batch",
    "head_kl": "mean",
    "expectation": "monte-carlo",
}
"""Options of :func:`resnet` that made the paper's tables, where they differ from its text.

>>> import convdkm as dkm
>>> model = dkm.resnet20(in_channels=3, num_classes=10, **dkm.PUBLISHED)
"""


def resnet(
    in_channels: int,
    num_classes: int,
    inducing: Sequence[int] = (128, 256, 512),
    blocks: Sequence[int] = (3, 3, 3),
    *,
    nu: float | Sequence[float] = 1.0,
    kernel: Kernel | None = None,
    jitter: float = 0.0,
    normalisation: tuple[InducingNorm, DataNorm] = ("batch", "batch"),
    scaling: tuple[InducingScale, DataScale] = ("batch", "batch"),
    statistics: Statistics = "running",
    centre: bool = False,
    strides: Sequence[int] | None = None,
    kernel_size: int = 3,
    input_stride: int = 1,
    border: Border = "zero",
    inducing_choice: InducingChoice = "random",
    mixing: MixingInit = "random",
    mixing_parameterisation: Parameterisation = "direct",
    gram_parameterisation: Parameterisation = "direct",
    gram_scale: float = 1.0,
    learn_gram_scale: bool = False,
    divide_gram: bool = False,
    skip_weight: float = 0.5,
    learn_skip: bool = False,
    top: Top = "gap",
    likelihood: LikelihoodName | Likelihood = "categorical",
    expectation: Expectation | None = None,
    samples: int | None = None,
    head_parameterisation: Parameterisation = "direct",
    head_covariance: Covariance = "shared",
    head_kl: HeadKL = "sum",
    ndim: int = 2,
    dtype: torch.dtype = torch.float32,
) -> DeepKernelMachine:
    """A residual convolutional deep kernel machine.

    Input patches, then one layer and stages of residual blocks of two layers, each layer being
    ``kernel → convolution → Gram layer → normalisation``; then the top layer, one more
    normalisation, and the head. With three blocks in each of three stages it mirrors ResNet20.

    The defaults are the paper's base model; :data:`PUBLISHED` holds the settings of the published
    runs where they differ.

    Args:
        in_channels: channels of the images.
        num_classes: number of classes.
        inducing: inducing points of every stage.
        blocks: residual blocks of every stage.
        nu: weight of every Gram layer's KL, 0 to infinity: one number, or one for each Gram layer
            from the input up (19 of them in ResNet20).
        kernel: copied for every layer; ``ArcCosine()`` by default.
        jitter: relative and absolute white noise before and after every kernel.
        normalisation: (inducing, data) schemes of :class:`Norm`.
        scaling: (inducing, data) scaling schemes of :class:`Norm`.
        statistics: what normalisation uses in evaluation, ``"running"`` or ``"batch"``.
        centre: put a :class:`Centre` before every normalisation.
        strides: of the first block of every stage; ``(1, 2, 2, …)`` by default.
        kernel_size: of the input patches and all convolutions but the shortcuts.
        input_stride: stride of the input patches; 2 quarters the cost of the layers before the
            first strided block.
        border: what Γ_tt does at the border, see :class:`Conv`.
        inducing_choice: how inducing patches are chosen, see :class:`PatchInput`.
        mixing, mixing_parameterisation: how the mixing weights start, ``"random"`` or real
            ``"patches"``, and what of them is learned, see :class:`Conv`.
        gram_parameterisation, gram_scale, learn_gram_scale, divide_gram: see :class:`GramLayer`.
        skip_weight, learn_skip: see :class:`Skip`.
        top: ``"gap"``, ``"linear"``, or either with mixing weights (``"gap+mix"``).
        likelihood: ``"categorical"``, ``"gaussian"`` (on one-hot labels), or a likelihood.
        expectation, samples: how a likelihood given by name takes expectations; by default an
            integral for the categorical and the closed form for the Gaussian.
        head_parameterisation, head_covariance: see :class:`GPHead`.
        head_kl: the head's KL is the ``"sum"`` over the classes or their ``"mean"``.
        ndim: spatial axes of the images, 1 to 3.
        dtype: precision of the data path.
    """
    if not all(isinstance(sizes, Sequence) for sizes in (inducing, blocks)):
        raise InvalidInputError(
            f"inducing and blocks hold a number for each stage, got {inducing!r} and {blocks!r}"
        )
    inducing, blocks = tuple(inducing), tuple(blocks)
    strides = (1, *(2,) * (len(blocks) - 1)) if strides is None else tuple(strides)
    if not blocks or not len(inducing) == len(blocks) == len(strides):
        raise InvalidInputError(
            "a residual machine needs inducing points, blocks and strides for each stage; got"
            f" {len(inducing)}, {len(blocks)} and {len(strides)}"
        )
    if min(inducing) < 1 or min(blocks) < 1:
        raise InvalidInputError(f"inducing {inducing} and blocks {blocks} must be positive")
    for option, pair in (("normalisation", normalisation), ("scaling", scaling)):
        if len(pair) != 2:
            raise InvalidInputError(f"{option} is a pair of schemes (inducing, data), got {pair!r}")
    check_choice("top", top, Top)
    kernel = ArcCosine() if kernel is None else kernel
    weights = iter(one_per_layer("nu", nu, 1 + 2 * sum(blocks)))

    def norm() -> list[tuple[str, Layer]]:
        layers: list[tuple[str, Layer]] = (
            [("centre", Centre(statistics=statistics))] if centre else []
        )
        return [*layers, ("norm", Norm(*normalisation, *scaling, statistics=statistics))]

    def nonlinearity() -> Layer:
        own = copy.deepcopy(kernel)
        return Sequential(Noise(jitter, jitter), own, Noise(jitter, jitter)) if jitter else own

    def conv(before: int, after: int, size: int, stride: int) -> Conv:
        return Conv(
            before,
            after,
            size,
            stride=stride,
            border=border,
            mixing=mixing,
            parameterisation=mixing_parameterisation,
            ndim=ndim,
        )

    def layer(before: int, after: int, stride: int = 1) -> Sequential:
        gram = GramLayer(
            after,
            next(weights),
            parameterisation=gram_parameterisation,
            initial_scale=gram_scale,
            learn_scale=learn_gram_scale,
            divided=divide_gram,
        )
        steps = [("kernel", nonlinearity()), ("conv", conv(before, after, kernel_size, stride))]
        return Sequential(dict([*steps, ("gram", gram), *norm()]))

    def block(before: int, after: int, stride: int) -> Skip:
        body = {"first": layer(before, after, stride), "second": layer(after, after)}
        shortcut = None
        if before != after or stride != 1:
            shortcut = Sequential(dict([("conv", conv(before, after, 1, stride)), *norm()]))
        return Skip(Sequential(body), shortcut, weight=skip_weight, learn=learn_skip)

    body: dict[str, Layer] = {"stem": layer(inducing[0], inducing[0])}
    before = inducing[0]
    for index, (after, count, stride) in enumerate(zip(inducing, blocks, strides, strict=True), 1):
        steps = [block(before, after, stride), *(block(after, after, 1) for _ in range(count - 1))]
        named = {f"block{number}": step for number, step in enumerate(steps, 1)}
        body[f"stage{index}"] = Sequential(named)
        before = after
    if top.startswith("gap"):
        body["pool"] = GlobalAveragePool()
        if top == "gap+mix":
            body["mix"] = Mix(before, before)
    else:
        body["flatten"] = Flatten(before if top == "linear+mix" else None)
    body.update(norm())

    return DeepKernelMachine(
        PatchInput(
            in_channels,
            inducing[0],
            kernel_size,
            stride=input_stride,
            border=border,
            choice=inducing_choice,
            ndim=ndim,
        ),
        Sequential(body),
        GPHead(
            before,
            num_classes,
            covariance=head_covariance,
            parameterisation=head_parameterisation,
        ),
        _likelihood(likelihood, num_classes, expectation, samples),
        head_kl=head_kl,
        dtype=dtype,
    )


def _likelihood(
    likelihood: str | Likelihood, outputs: int, expectation: Any, samples: int | None
) -> Likelihood:
    if isinstance(likelihood, Likelihood):
        if expectation is not None or samples is not None:
            raise InvalidInputError(
                "expectation and samples go with a likelihood given by name; set them on the"
                f" {type(likelihood).__name__} itself"
            )
        return likelihood
    if likelihood == "categorical":
        return Categorical(outputs, expectation=expectation or "nodes", samples=samples)
    if likelihood == "gaussian":
        closed = expectation in (None, "nodes")
        return Gaussian(
            outputs,
            classes=True,
            expectation="closed-form" if closed else expectation,
            samples=1000 if samples is None else samples,
        )
    raise InvalidInputError(
        f"likelihood must be 'categorical', 'gaussian' or a Likelihood, got {likelihood!r}"
    )


def resnet20(
    in_channels: int,
    num_classes: int,
    inducing: Sequence[int] = (128, 256, 512),
    **options: Any,
) -> DeepKernelMachine:
    """The paper's model: the shape of ResNet20. Options as in :func:`resnet`."""
    return resnet(in_channels, num_classes, inducing, (3, 3, 3), **options)


def resnet8(
    in_channels: int,
    num_classes: int,
    inducing: Sequence[int] = (16, 32, 64),
    **options: Any,
) -> DeepKernelMachine:
    """One block in each of three stages. Options as in :func:`resnet`."""
    return resnet(in_channels, num_classes, inducing, (1, 1, 1), **options)


def fully_connected(
    in_features: int,
    num_outputs: int,
    inducing: int = 100,
    depth: int = 2,
    *,
    nu: float | Sequence[float] = 1.0,
    kernel: Kernel | None = None,
    normalise: bool = False,
    gram_parameterisation: Parameterisation = "whitened",
    gram_scale: float = 1.0,
    likelihood: LikelihoodName | Likelihood = "gaussian",
    noise: float | None = None,
    head_parameterisation: Parameterisation = "whitened",
    head_covariance: Covariance = "shared",
    dtype: torch.dtype = torch.float32,
) -> DeepKernelMachine:
    """The fully connected sparse deep kernel machine (Eq. 7), on vectors.

    ``depth`` layers of ``kernel → Gram layer``, one more kernel, and the head.

    Args:
        in_features: length of the vectors.
        num_outputs: number of regression targets, or of classes.
        inducing: number of inducing points, the same in every layer.
        depth: number of learned Gram matrices.
        nu: weight of every Gram layer's KL: one number, or one for each.
        kernel: copied for every layer; ``ArcCosine()`` by default.
        normalise: put a :class:`Norm` after every Gram layer.
        gram_parameterisation, gram_scale: see :class:`GramLayer`.
        likelihood: ``"gaussian"`` for regression, ``"categorical"`` for classes, or a likelihood.
        noise: variance of the Gaussian noise to start with; 0.1 by default.
        head_parameterisation, head_covariance: see :class:`GPHead`.
        dtype: precision of the data path.
    """
    if not isinstance(depth, int) or depth < 0:
        raise InvalidInputError(f"depth must be an integer that is not negative, got {depth!r}")
    kernel = ArcCosine() if kernel is None else kernel
    body: dict[str, Layer] = {}
    for index, weight in enumerate(one_per_layer("nu", nu, depth), 1):
        gram = GramLayer(
            inducing, weight, parameterisation=gram_parameterisation, initial_scale=gram_scale
        )
        steps: list[tuple[str, Layer]] = [("kernel", copy.deepcopy(kernel)), ("gram", gram)]
        if normalise:
            steps.append(("norm", Norm()))
        body[f"layer{index}"] = Sequential(dict(steps))
    body["kernel"] = copy.deepcopy(kernel)
    if likelihood == "gaussian":
        likelihood = Gaussian(num_outputs, noise=0.1 if noise is None else noise)
    elif noise is not None:
        raise InvalidInputError("noise goes with likelihood='gaussian'; set it on the likelihood")
    head = GPHead(
        inducing,
        num_outputs,
        covariance=head_covariance,
        parameterisation=head_parameterisation,
    )
    return DeepKernelMachine(
        VectorInput(in_features, inducing),
        Sequential(body),
        head,
        _likelihood(likelihood, num_outputs, None, None),
        dtype=dtype,
    )

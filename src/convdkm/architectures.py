"""The table of models: each is a few readable lines of composed layers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from convdkm.checks import check_choice, one_per_layer
from convdkm.choices import (
    Covariance,
    DataNorm,
    DataScale,
    InducingNorm,
    InducingScale,
    LikelihoodName,
    Parameterisation,
)
from convdkm.errors import InvalidInputError
from convdkm.head import GPHead
from convdkm.kernels import KERNELS, ArcCosine, Kernel
from convdkm.kernels.registry import KernelName
from convdkm.layers.base import Layer
from convdkm.layers.compose import Sequential, Skip
from convdkm.layers.conv import Conv, Mix
from convdkm.layers.gram_layer import GramLayer
from convdkm.layers.input import PatchInput, VectorInput
from convdkm.layers.noise import Jitter, Noise
from convdkm.layers.norm import Centre, Norm
from convdkm.layers.pool import Flatten, GlobalAveragePool
from convdkm.likelihoods import Categorical, Gaussian, Likelihood
from convdkm.model import DeepKernelMachine
from convdkm.options import MachineOptions

Function = TypeVar("Function", bound=Callable[..., Any])

PUBLISHED: dict[str, Any] = {
    "strides": (2, 2, 2),
    "border": "inside",
    "kernel": ArcCosine(weight_variance=1.0, bias_variance=0.1),
    "jitter": 1e-4,
    "jitter_angles": True,
    "interior_patches": True,
    "divide_mixing": True,
    "learn_gram_scale": True,
    "divide_gram": True,
    "full_gram": True,
    "learn_noise": False,
    "statistics": "batch",
    "head_kl": "mean",
    "expectation": "monte-carlo",
}
"""Options of :func:`resnet` that made the paper's tables, where they differ from its text.

>>> import convdkm as dkm
>>> model = dkm.resnet20(in_channels=3, num_classes=10, **dkm.PUBLISHED)
"""

DEFAULTS = MachineOptions()


def _takes_options(function: Function) -> Function:
    """Show the options of a machine in the signature and the documentation of a function."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    text = (function.__doc__ or "").rstrip()
    for name, field in MachineOptions.model_fields.items():
        if name not in signature.parameters:
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(name, keyword, default=field.default))
        if f" {name}: " not in text:
            text += f"\n        {name}: {field.description}."
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__doc__ = text
    return function


@_takes_options
def resnet(
    in_channels: int,
    num_classes: int,
    inducing: Sequence[int] = DEFAULTS.inducing,
    blocks: Sequence[int] = DEFAULTS.blocks,
    *,
    kernel: KernelName | Kernel = DEFAULTS.kernel,
    likelihood: LikelihoodName | Likelihood = DEFAULTS.likelihood,
    normalisation: tuple[InducingNorm, DataNorm] | None = None,
    scaling: tuple[InducingScale, DataScale] | None = None,
    ndim: int = 2,
    dtype: torch.dtype = torch.float32,
    **options: Any,
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
        kernel: a name, or a kernel, which is copied for every layer.
        likelihood: a name (``"gaussian"`` is on one-hot labels), or a likelihood.
        normalisation: (inducing, data) schemes of :class:`Norm`, in place of ``inducing_norm`` and
            ``data_norm``.
        scaling: (inducing, data) scaling schemes of :class:`Norm`, in place of ``inducing_scale``
            and ``data_scale``.
        ndim: spatial axes of the images, 1 to 3.
        dtype: precision of the data path.
    """
    if not all(isinstance(sizes, Sequence) for sizes in (inducing, blocks)):
        raise InvalidInputError(
            f"inducing and blocks hold a number for each stage, got {inducing!r} and {blocks!r}"
        )
    given = {name: value for name, value in options.items() if value is not None}
    for option, pair, block in (
        ("normalisation", normalisation, "norm"),
        ("scaling", scaling, "scale"),
    ):
        if pair is not None:
            if len(pair) != 2:
                raise InvalidInputError(
                    f"{option} is a pair of schemes (inducing, data), got {pair!r}"
                )
            given |= {f"inducing_{block}": pair[0], f"data_{block}": pair[1]}
    if not isinstance(likelihood, Likelihood):
        given["likelihood"] = likelihood
    elif given.keys() & {"expectation", "samples"}:
        raise InvalidInputError(
            "expectation and samples go with a likelihood given by name; set them on the"
            f" {type(likelihood).__name__} itself"
        )
    if not isinstance(kernel, Kernel) and kernel is not None:
        given["kernel"] = kernel
    described = MachineOptions.checked({**given, "inducing": inducing, "blocks": blocks})
    sizes = len(inducing), len(blocks), len(described.strides or blocks)
    if len(set(sizes)) > 1 or not sizes[0]:
        raise InvalidInputError(
            "a residual machine needs inducing points, blocks and strides for each stage; got"
            f" {sizes[0]}, {sizes[1]} and {sizes[2]}"
        )
    return build_model(
        described,
        in_channels,
        num_classes,
        dtype,
        kernel=kernel if isinstance(kernel, Kernel) else None,
        likelihood=likelihood if isinstance(likelihood, Likelihood) else None,
        ndim=ndim,
    )


def build_model(
    options: MachineOptions,
    in_channels: int,
    num_classes: int,
    dtype: torch.dtype = torch.float32,
    *,
    kernel: Kernel | None = None,
    likelihood: Likelihood | None = None,
    ndim: int = 2,
) -> DeepKernelMachine:
    """The residual machine that options describe; see :func:`resnet`.

    A kernel or a likelihood of your own takes the place of the one that they name.
    """
    if kernel is None:
        kernel = KERNELS.build(options.kernel, options.model_dump())
    if likelihood is None:
        likelihood = _likelihood(options, num_classes)
    weights = iter(one_per_layer("nu", options.nu, 1 + 2 * sum(n for _, n, _ in options.stages)))

    def norms(*, centred: bool = options.centre != "none") -> dict[str, Layer]:
        centre = {"centre": Centre(statistics=options.statistics)} if centred else {}
        norm = Norm(
            options.inducing_norm,
            options.data_norm,
            options.inducing_scale,
            options.data_scale,
            statistics=options.statistics,
        )
        return {**centre, "norm": norm}

    def nonlinearity() -> Layer:
        copied, jitter = copy.deepcopy(kernel), options.jitter
        if not jitter:
            return copied
        noise = Noise(jitter, jitter)
        if options.jitter_angles:
            return Sequential(Jitter(copied, jitter, jitter), noise)
        return Sequential(Noise(jitter, jitter), copied, noise)

    def conv(before: int, after: int, size: int, stride: int) -> Conv:
        return Conv(
            before,
            after,
            size,
            stride=stride,
            border=options.border,
            mixing=options.mixing,
            parameterisation=options.mixing_parameterisation,
            divided=options.divide_mixing,
            ndim=ndim,
        )

    def layer(before: int, after: int, stride: int = 1) -> Sequential:
        gram = GramLayer(
            after,
            next(weights),
            parameterisation=options.gram_parameterisation,
            initial_scale=options.gram_scale,
            learn_scale=options.learn_gram_scale,
            divided=options.divide_gram,
            full=options.full_gram,
            samples=options.gram_samples,
            noise=options.gram_noise * options.gram_scale,
            kl=options.kl,
        )
        wide = conv(before, after, options.kernel_size, stride)
        return Sequential({"kernel": nonlinearity(), "conv": wide, "gram": gram, **norms()})

    def block(before: int, after: int, stride: int) -> Skip:
        body = {"first": layer(before, after, stride), "second": layer(after, after)}
        shortcut = None
        if before != after or stride != 1:
            point = conv(before, after, 1, stride)
            shortcut = Sequential({"conv": point, **norms(centred=options.centre == "all")})
        return Skip(
            Sequential(body), shortcut, weight=options.skip_weight, learn=options.learn_skip
        )

    first = before = options.stem or options.inducing[0]
    body: dict[str, Layer] = {"stem": layer(first, first)}
    for index, (after, count, stride) in enumerate(options.stages, 1):
        steps = [block(before, after, stride), *(block(after, after, 1) for _ in range(count - 1))]
        named = {f"block{number}": step for number, step in enumerate(steps, 1)}
        body[f"stage{index}"] = Sequential(named)
        before = after
    if options.top.startswith("gap"):
        body["pool"] = GlobalAveragePool()
        if options.top == "gap+mix":
            identity = options.mixing == "identity"
            body["mix"] = Mix(before, before, identity=identity, divided=options.divide_mixing)
    else:
        mixed = before if options.top == "linear+mix" else None
        body["flatten"] = Flatten(mixed, divided=options.divide_mixing)
    body.update(norms())

    return DeepKernelMachine(
        PatchInput(
            in_channels,
            first,
            options.kernel_size,
            stride=options.input_stride,
            border=options.border,
            choice=options.inducing_choice,
            interior=options.interior_patches,
            ndim=ndim,
        ),
        Sequential(body),
        GPHead(
            before,
            num_classes,
            covariance=options.head_covariance,
            parameterisation=options.head_parameterisation,
            kl=options.kl,
        ),
        likelihood,
        head_kl=options.head_kl,
        dtype=dtype,
    )


def _likelihood(options: MachineOptions, outputs: int) -> Likelihood:
    if options.likelihood == "categorical":
        return Categorical(outputs, expectation=options.expectation, samples=options.samples)
    return Gaussian(
        outputs,
        noise=options.noise,
        learn_noise=options.learn_noise,
        classes=True,
        expectation="closed-form" if options.expectation == "nodes" else "monte-carlo",
        samples=1000 if options.samples is None else options.samples,
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
    learn_scales: bool = False,
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
        learn_scales: learn a scale of every feature; see :class:`VectorInput`.
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
        norm = {"norm": Norm()} if normalise else {}
        body[f"layer{index}"] = Sequential({"kernel": copy.deepcopy(kernel), "gram": gram, **norm})
    body["kernel"] = copy.deepcopy(kernel)
    if likelihood == "gaussian":
        likelihood = Gaussian(num_outputs, noise=0.1 if noise is None else noise)
    elif noise is not None:
        raise InvalidInputError("noise goes with likelihood='gaussian'; set it on the likelihood")
    elif not isinstance(likelihood, Likelihood):
        check_choice("likelihood", likelihood, LikelihoodName)
        likelihood = Categorical(num_outputs)
    head = GPHead(
        inducing, num_outputs, covariance=head_covariance, parameterisation=head_parameterisation
    )
    points = VectorInput(in_features, inducing, learn_scales=learn_scales)
    return DeepKernelMachine(points, Sequential(body), head, likelihood, dtype=dtype)

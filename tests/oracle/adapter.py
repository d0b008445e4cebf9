"""What the oracle says of a layer of the library, given the layer's parameters."""

from __future__ import annotations

from functools import singledispatch

import numpy as np
import torch

import convdkm as dkm
import oracle
from convdkm.layers import Window
from oracle import Blocks, kernels
from oracle.blocks import Array
from oracle.windows import Pads, Place

KLs = dict[str, tuple[float, float]]


def array(tensor: torch.Tensor) -> Array:
    """A tensor as a float64 array."""
    return tensor.detach().to(torch.float64).numpy()


def blocks(gram: dkm.Gram) -> Blocks:
    return Blocks(array(gram.ii), array(gram.it), array(gram.tt))


def expected(layer: dkm.Layer, gram: Blocks) -> Blocks:
    """The outgoing Gram."""
    return push(layer, gram)[0]


@singledispatch
def push(layer: dkm.Layer, gram: Blocks) -> tuple[Blocks, KLs]:
    """The outgoing Gram, and (ν, KL) of every Gram layer inside by its name."""
    raise NotImplementedError(f"the oracle does not know {type(layer).__name__}")


def _window(window: Window) -> dict[str, Place | Pads]:
    return {"stride": window.stride, "dilation": window.dilation, "padding": window.padding}


# -- kernels -----------------------------------------------------------------------------------


def _number(positive) -> float:
    return float(positive.log_value.detach().exp())


def _variances(kernel: dkm.Angular | dkm.Sine) -> tuple[float, float]:
    weight = 1.0 if kernel.weight_variance is None else _number(kernel.weight_variance)
    return weight, 0.0 if kernel.bias_variance is None else _number(kernel.bias_variance)


@singledispatch
def kernel_function(kernel: dkm.Kernel) -> kernels.KernelFunction:
    raise NotImplementedError(f"the oracle does not know {type(kernel).__name__}")


@kernel_function.register
def _(kernel: dkm.ArcCosine):
    return kernels.arc_cosine(kernel.order, *_variances(kernel))


@kernel_function.register
def _(kernel: dkm.ArcSine):
    return kernels.arc_sine(*_variances(kernel))


@kernel_function.register
def _(kernel: dkm.Sine):
    return kernels.sine(kernel.frequency, kernel.phase, *_variances(kernel))


@kernel_function.register
def _(kernel: dkm.LeakyReLU):
    return kernels.leaky_relu(kernel.negative_slope, *_variances(kernel))


@kernel_function.register
def _(kernel: dkm.SquaredExponential):
    return kernels.squared_exponential(_number(kernel.lengthscale), _number(kernel.scale))


@kernel_function.register
def _(kernel: dkm.Matern):
    return kernels.matern(kernel.smoothness, _number(kernel.lengthscale), _number(kernel.scale))


@kernel_function.register
def _(kernel: dkm.RationalQuadratic):
    return kernels.rational_quadratic(
        _number(kernel.alpha), _number(kernel.lengthscale), _number(kernel.scale)
    )


@kernel_function.register
def _(kernel: dkm.NormalisedGaussian):
    return kernels.normalised_gaussian(_number(kernel.gamma))


@kernel_function.register
def _(kernel: dkm.NormalisedPolynomial):
    return kernels.normalised_polynomial(kernel.weights)


@kernel_function.register
def _(kernel: dkm.Linear):
    return kernels.linear()


@kernel_function.register
def _(kernel: dkm.Scaled):
    return kernels.scaled(kernel_function(kernel.kernel), _number(kernel.factor))


@kernel_function.register
def _(kernel: dkm.Sum):
    return kernels.total([kernel_function(k) for k in kernel.kernels])


@kernel_function.register
def _(kernel: dkm.Product):
    return kernels.product([kernel_function(k) for k in kernel.kernels])


@kernel_function.register
def _(kernel: dkm.ConvexCombination):
    weights = np.exp(array(kernel.logits))
    return kernels.convex_combination([kernel_function(k) for k in kernel.kernels], list(weights))


@push.register
def _(layer: dkm.Kernel, gram: Blocks):
    return oracle.apply_kernel(kernel_function(layer), gram), {}


# -- layers ------------------------------------------------------------------------------------


@push.register
def _(layer: dkm.Conv, gram: Blocks):
    weight = array(layer.weight) / layer.divisor
    return oracle.convolve(gram, weight, border=layer.border, **_window(layer.window)), {}


@push.register
def _(layer: dkm.Mix, gram: Blocks):
    return oracle.mix(gram, array(layer.weight) / layer.divisor), {}


def learned_gram(layer: dkm.GramLayer, K_ii: Array) -> Array:
    """G_ii from the parameters of a Gram layer."""
    factor = array(layer.factor) / layer.divisor
    factor = factor if layer.full else np.tril(factor)
    if layer.parameterisation == "whitened":
        factor = np.linalg.cholesky(K_ii) @ factor
    scale = 1.0 if layer.log_scale is None else np.exp(array(layer.log_scale))
    return scale * factor @ factor.T


@push.register
def _(layer: dkm.GramLayer, gram: Blocks):
    if np.isinf(layer.nu):
        return gram, {}
    G_ii = learned_gram(layer, gram.ii)
    divergence = oracle.gaussian_kl(G_ii, gram.ii)
    return oracle.predict_gram(gram, G_ii), {"": (layer.nu, divergence)}


def _uses_batch(layer: dkm.Norm | dkm.Centre) -> bool:
    return layer.training or layer.statistics == "batch"


@push.register
def _(layer: dkm.Norm, gram: Blocks):
    psi = 1.0 if layer.log_inducing_scale is None else np.exp(array(layer.log_inducing_scale))
    Psi = 1.0 if layer.log_data_scale is None else np.exp(array(layer.log_data_scale))
    averaged = layer.data in ("batch", "location") and not _uses_batch(layer)
    variance = array(layer.running_variance) if averaged else None
    schemes = (layer.inducing, layer.data)
    return oracle.normalise(gram, *schemes, psi=psi, Psi=Psi, variance=variance), {}


@push.register
def _(layer: dkm.Centre, gram: Blocks):
    if _uses_batch(layer):
        return oracle.centre(gram), {}
    return oracle.centre(gram, np.linalg.cholesky(gram.ii) @ array(layer.running_mean)), {}


@push.register
def _(layer: dkm.Noise, gram: Blocks):
    return oracle.add_noise(gram, layer.relative, layer.absolute), {}


@push.register
def _(layer: dkm.Jitter, gram: Blocks):
    noise = layer.noise
    kernel = kernel_function(layer.kernel)
    return oracle.jitter(kernel, gram, noise.relative, noise.absolute), {}


@push.register
def _(layer: dkm.AveragePool, gram: Blocks):
    window = layer.window
    return oracle.average_pool(gram, window.size, window.stride, window.padding), {}


@push.register
def _(layer: dkm.GlobalAveragePool, gram: Blocks):
    return oracle.global_average_pool(gram), {}


@push.register
def _(layer: dkm.Flatten, gram: Blocks):
    if layer.weight is None:
        return oracle.flatten(gram, None), {}
    divisor = np.sqrt(layer.weight.shape[1]) if layer.divided else 1.0
    return oracle.flatten(gram, array(layer.weight) / divisor), {}


def _prefixed(name: str, kl: KLs) -> KLs:
    return {f"{name}.{key}" if key else name: value for key, value in kl.items()}


@push.register
def _(layer: dkm.Sequential, gram: Blocks):
    found: KLs = {}
    for name, inner in layer.named_layers():
        gram, kl = push(inner, gram)
        found.update(_prefixed(name, kl))
    return gram, found


@push.register
def _(layer: dkm.Skip, gram: Blocks):
    body, found = push(layer.body, gram)
    found = _prefixed("body", found)
    short = gram
    if layer.shortcut is not None:
        short, kl = push(layer.shortcut, gram)
        found.update(_prefixed("shortcut", kl))
    return oracle.skip(short, body, float(layer.weight.detach())), found


# -- inputs and the head -----------------------------------------------------------------------


def expected_input(layer: dkm.Input, inputs: torch.Tensor) -> Blocks:
    """The first Gram."""
    inducing, inputs = array(layer.inducing), array(inputs)
    if isinstance(layer, dkm.VectorInput):
        if layer.log_scales is not None:
            scales = np.exp(array(layer.log_scales))
            inducing, inputs = inducing * scales, inputs * scales
        return oracle.vector_gram(inducing, inputs)
    window = _window(layer.window)
    return oracle.patch_gram(inducing, inputs, border=layer.border, **window)


def head_posterior(head: dkm.GPHead, K_ii: Array) -> tuple[Array, Array]:
    """μ ``(outputs, P)`` and A ``(outputs, P, P)`` from the parameters of a head."""
    mean, factor = array(head.mean), array(head.factor) / head.divisor
    if head.covariance == "shared":
        factor = np.stack([factor] * head.num_outputs)
    if head.parameterisation == "whitened":
        lower = np.linalg.cholesky(K_ii)
        mean, factor = mean @ lower.T, lower @ factor
    return mean, np.stack([root @ root.T for root in factor])

r"""The variances of every image before every nonlinearity, worked out once for each image.

Without pooling they follow from each other: kernels say what becomes of a variance, and a
convolution averages :math:`\Sigma(s + d, s + d)`. A pooling needs the covariances of the image's
places with one another, so that the image is sent through the layers below it once, paired with
itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from convdkm.exact import Convolution
from convdkm.kernels import Kernel
from convdkm.lab.baselines.kernels.geometry import Apart, Roots
from convdkm.lab.baselines.kernels.layers import Architecture, Layer, body_of
from convdkm.lab.baselines.kernels.source import Features, matched_apart
from convdkm.lab.baselines.kernels.stream import Slabs, run
from convdkm.layers import AveragePool, Skip


def variance_maps(architecture: Architecture, images: Tensor) -> list[Tensor]:
    """The variance of every place before each nonlinearity: ``(N, H, W)`` of each."""
    inputs = Features.of(architecture, images)
    layers = architecture.layers
    if layers and isinstance(layers[0], Convolution):
        layers = layers[1:]
    variance = inputs.variance
    slabs: Slabs = matched_apart(inputs, inputs)
    maps: list[Tensor] = []
    for stage, pool in _stages(layers):
        found: list[Tensor] = []
        variance = _followed(stage, variance, found)
        maps += found
        if pool is not None:
            roots = (Roots.of(own, own, Apart) for own in found)
            whole = torch.stack(list(run((*stage, pool), slabs, roots, Apart)))
            space = whole.shape[:2]
            places = whole.flatten(0, 1).flatten(1, 2)
            variance = places.diagonal(dim1=0, dim2=1).unflatten(1, space).contiguous()
            slabs = iter(whole.unbind(0))
    return maps


def _stages(layers: Sequence[Layer]) -> Iterator[tuple[tuple[Layer, ...], AveragePool | None]]:
    """Runs of layers without pooling, and the pooling that ends each; None at the top."""
    stage: list[Layer] = []
    for layer in layers:
        if isinstance(layer, AveragePool):
            yield tuple(stage), layer
            stage = []
        else:
            stage.append(layer)
    yield tuple(stage), None


def _followed(layers: Sequence[Layer], variance: Tensor, found: list[Tensor]) -> Tensor:
    """Variances after layers without pooling; those before each nonlinearity go to ``found``."""
    for layer in layers:
        if isinstance(layer, Convolution):
            mean = layer.window.mean(variance)
            variance = mean * layer.weight_variance + layer.bias_variance
        elif isinstance(layer, Skip):
            body = _followed(body_of(layer), variance, found)
            variance = torch.lerp(variance, body, layer.weight.to(variance.dtype))
        elif isinstance(layer, Kernel):
            found.append(variance)
            variance = layer.variance(variance)
    return variance

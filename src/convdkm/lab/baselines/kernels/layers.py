r"""Infinitely wide convolutional networks as data: layers, tops, and a whole architecture.

:math:`\Sigma(s, s')` is the covariance of the units at place :math:`s` of one image with those at
place :math:`s'` of another. A network is described by what its layers do to it; the equations stand
with each layer, and :mod:`convdkm.lab.baselines.kernels.stream` computes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from convdkm.errors import InvalidInputError
from convdkm.kernels import ArcCosine, Kernel, NormalisedGaussian


@dataclass(frozen=True)
class Conv:
    r"""A convolution of odd size, stride 1, with zeros outside the image.

    .. math:: \Sigma'(s, s') = \frac{\sigma_w^2}{D} \sum_d \Sigma(s + d, s' + d) + \sigma_b^2

    where d runs over the D places of the filter; the divisor is D at the border too.

    Args:
        size: side of the filter, an odd number.
        weight_variance: :math:`\sigma_w^2`; each weight has variance :math:`\sigma_w^2 / (C D)`.
        bias_variance: :math:`\sigma_b^2`.
    """

    size: int = 3
    weight_variance: float = 1.0
    bias_variance: float = 0.0

    def __post_init__(self) -> None:
        if self.size < 1 or self.size % 2 == 0:
            raise InvalidInputError(f"the size of a convolution is odd, got {self.size}")
        _positive("weight_variance of a convolution", self.weight_variance)
        if not 0 <= self.bias_variance < math.inf:
            raise InvalidInputError(
                f"bias_variance of a convolution must not be negative, got {self.bias_variance}"
            )


@dataclass(frozen=True)
class Relu:
    r"""A ReLU: the arc-cosine kernel of order 1 (Cho & Saul, 2009).

    .. math:: \Sigma'(s, s') = g \sqrt{ab}\,\frac{\sin\theta + (\pi - \theta)\cos\theta}{2\pi},
              \qquad \cos\theta = \Sigma(s, s') / \sqrt{ab}

    where a and b are the variances of the two places.

    Args:
        gain: g. 2 keeps variances (normalised); 1 is the ReLU itself, which goes with
            convolutions of ``weight_variance=2`` (He initialisation).
    """

    gain: float = 2.0

    def __post_init__(self) -> None:
        _positive("gain of a ReLU", self.gain)

    @property
    def kernel(self) -> Kernel:
        """As the kernel of a machine's layer."""
        half = None if self.gain == 2 else self.gain / 2
        return ArcCosine(weight_variance=half, learn=False)


@dataclass(frozen=True)
class Gaussian:
    r"""The normalised Gaussian kernel that Shankar et al. (2020) put in the place of the ReLU.

    .. math:: \Sigma'(s, s') = \sqrt{ab}\,\exp(\gamma(\cos\theta - 1))
    """

    gamma: float = 1.0

    def __post_init__(self) -> None:
        _positive("gamma of a Gaussian nonlinearity", self.gamma)

    @property
    def kernel(self) -> Kernel:
        """As the kernel of a machine's layer."""
        return NormalisedGaussian(self.gamma)


@dataclass(frozen=True)
class AveragePool:
    r"""Averages over squares that do not overlap, on both sides.

    .. math:: \Sigma'(t, t') = \frac1{p^4} \sum_{s \in t} \sum_{s' \in t'} \Sigma(s, s')
    """

    size: int = 2

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InvalidInputError(f"the size of a pooling is positive, got {self.size}")


@dataclass(frozen=True)
class Residual:
    r"""A sum with a shortcut: :math:`\Sigma' = u\,\Sigma + v\,B(\Sigma)`.

    Args:
        body: B, convolutions and nonlinearities in order.
        shortcut_weight: u.
        body_weight: v. With u + v = 1 normalised layers keep variances; u = v = 1 is the plain sum.
    """

    body: tuple[Conv | Relu | Gaussian, ...]
    shortcut_weight: float = 0.5
    body_weight: float = 0.5

    def __post_init__(self) -> None:
        for layer in self.body:
            if not isinstance(layer, Conv | Relu | Gaussian):
                raise InvalidInputError(
                    "the body of a residual sum holds convolutions and nonlinearities, got"
                    f" {type(layer).__name__}; put pooling between the sums"
                )
        if not self.body:
            raise InvalidInputError("the body of a residual sum is empty")
        _positive("shortcut_weight of a residual sum", self.shortcut_weight)
        _positive("body_weight of a residual sum", self.body_weight)


@dataclass(frozen=True)
class Flatten:
    r"""A linear readout of all places (vectorised): :math:`k = \frac1S \sum_s \Sigma(s, s)`."""


@dataclass(frozen=True)
class GlobalAverage:
    r"""Global average pooling: :math:`k = \frac1{S^2} \sum_{s, s'} \Sigma(s, s')`."""


@dataclass(frozen=True)
class LocalAverage:
    r"""Local average pooling (Li et al., 2019): a box blur, then :class:`Flatten`.

    .. math:: k = \frac1S \sum_s \frac1{D^2} \sum_{d, d'} \Sigma(s + d, s + d')

    where d and d' run over the D places of a square, with zeros outside the image and the same
    divisor at the border. Size 1 is :class:`Flatten`; an infinite size, :class:`GlobalAverage` up
    to a factor.

    Args:
        size: side of the square, an odd number; 2c + 1 in the paper's notation.
    """

    size: int = 9

    def __post_init__(self) -> None:
        if self.size < 1 or self.size % 2 == 0:
            raise InvalidInputError(f"the size of a box blur is odd, got {self.size}")


Nonlinearity = Relu | Gaussian
Layer = Conv | Relu | Gaussian | AveragePool | Residual
Top = Flatten | GlobalAverage | LocalAverage


@dataclass(frozen=True)
class Architecture:
    """Layers in order, and a top that leaves one number for each pair of images.

    Args:
        name: how it is called in tables.
        layers: from the image up.
        top: how the last layer's places become one output.
    """

    name: str
    layers: tuple[Layer, ...]
    top: Top

    def __post_init__(self) -> None:
        for layer in self.layers:
            if not isinstance(layer, Layer):
                raise InvalidInputError(
                    f"an architecture is made of layers, got {type(layer).__name__}"
                )
        if not isinstance(self.top, Top):
            raise InvalidInputError(
                "the top of an architecture is Flatten, GlobalAverage or LocalAverage, got"
                f" {type(self.top).__name__}"
            )

    def space(self, height: int, width: int) -> tuple[int, int]:
        """The grid of places below the top.

        Raises:
            InvalidInputError: where a pooling does not divide the grid it is given.
        """
        for layer in self.layers:
            if isinstance(layer, AveragePool):
                if height % layer.size or width % layer.size:
                    raise InvalidInputError(
                        f"{self.name} pools {height}×{width} places in squares of"
                        f" {layer.size}×{layer.size}, which does not come out even; give images"
                        " of another size (32×32 suits every Myrtle network)"
                    )
                height, width = height // layer.size, width // layer.size
        return height, width

    def nonlinearities(self) -> Iterator[Nonlinearity]:
        """In the order in which data pass them."""
        yield from _nonlinearities(self.layers)

    def describe(self) -> dict[str, Any]:
        """All of it but the name, for a file: two architectures are the same if these are."""
        top = {"kind": type(self.top).__name__, **asdict(self.top)}
        return {"layers": [_described(layer) for layer in self.layers], "top": top}


def _nonlinearities(layers: tuple[Layer, ...]) -> Iterator[Nonlinearity]:
    for layer in layers:
        if isinstance(layer, Residual):
            yield from _nonlinearities(layer.body)
        elif isinstance(layer, Relu | Gaussian):
            yield layer


def _described(layer: Layer) -> dict[str, Any]:
    found = {"kind": type(layer).__name__, **asdict(layer)}
    if isinstance(layer, Residual):
        found["body"] = [_described(part) for part in layer.body]
    return found


def _positive(what: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InvalidInputError(f"the {what} must be a positive number, got {value}")

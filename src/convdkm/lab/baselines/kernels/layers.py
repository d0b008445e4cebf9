r"""Infinitely wide convolutional networks, made of the layers of exact kernels.

:math:`\Sigma(s, s')` is the covariance of the units at place :math:`s` of one image with those at
place :math:`s'` of another. What layers do to it stands with each of them, and
:class:`convdkm.exact.ExactKernel` does it to whole covariances. Here are networks whose covariances
are too large for that: :mod:`convdkm.lab.baselines.kernels.stream` takes them row by row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from convdkm.errors import GramError, InvalidInputError
from convdkm.exact import Convolution, ExactKernel, SpatialGram, propagate
from convdkm.kernels import ArcCosine, Kernel, NormalisedGaussian
from convdkm.layers import AveragePool, Flatten, GlobalAveragePool, Plan, Sequential, Skip, Window
from convdkm.layers import Layer as AnyLayer
from convdkm.predicting.describing import described

MYRTLE = {5: (2, 1, 1), 7: (2, 2, 2), 10: (3, 3, 3)}
"""Convolutions before the first pooling, before the second and after it."""


class LocalAverage(AnyLayer):
    r"""Local average pooling (Li et al., 2019): a box blur, then :class:`convdkm.Flatten`.

    .. math:: k = \frac1S \sum_s \frac1{D^2} \sum_{d, d'} \Sigma(s + d, s + d')

    where d and d' run over the D places of a square, with zeros outside the image and the same
    divisor at the border. Size 1 is :class:`convdkm.Flatten`; an infinite size,
    :class:`convdkm.GlobalAveragePool` up to a factor.

    Args:
        size: side of the square, an odd number; 2c + 1 in the paper's notation.
    """

    def __init__(self, size: int = 9) -> None:
        super().__init__()
        if size < 1 or size % 2 == 0:
            raise InvalidInputError(f"the size of a box blur is odd, got {size}")
        self.size = size

    def plan(self, ii: Tensor) -> Plan:
        raise GramError("LocalAverage is a layer of exact kernels alone")


@propagate.register
def _(layer: LocalAverage, gram: SpatialGram) -> SpatialGram:
    window = Window.of(layer.size, 1, "same", 1, len(gram.space))
    return gram.average_pool(window, inside=False).flatten()


Layer = Convolution | Kernel | AveragePool | Skip
Top = Flatten | GlobalAveragePool | LocalAverage


@dataclass(frozen=True, eq=False)
class Architecture:
    """Layers in order, and a top that leaves one number for each pair of images.

    Args:
        name: how it is called in tables.
        layers: from the image up: :class:`convdkm.exact.Convolution` of odd sizes and stride 1,
            kernels, :class:`convdkm.AveragePool` over squares that do not overlap, and
            :class:`convdkm.Skip` over convolutions and kernels.
        top: how the last layer's places become one output.
    """

    name: str
    layers: tuple[Layer, ...]
    top: Top

    def __post_init__(self) -> None:
        for layer in self.layers:
            _check(layer)
        if not isinstance(self.top, Top):
            raise InvalidInputError(
                "the top of an architecture is Flatten, GlobalAveragePool or LocalAverage, got"
                f" {type(self.top).__name__}"
            )

    @property
    def first(self) -> Convolution | None:
        """The convolution of the pixels; None where another layer is the first."""
        first = self.layers[0] if self.layers else None
        return first if isinstance(first, Convolution) else None

    @property
    def stages(self) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
        """The layers above :attr:`first`, split where different places cease to matter.

        The first part works on covariances of all pairs of places, the second on those of a place
        with itself: below :class:`convdkm.Flatten` nothing after the last pooling needs others.
        """
        layers = self.layers if self.first is None else self.layers[1:]
        if not isinstance(self.top, Flatten):
            return layers, ()
        pools = [index for index, layer in enumerate(layers, 1) if isinstance(layer, AveragePool)]
        cut = max(pools, default=0)
        return layers[:cut], layers[cut:]

    @property
    def needs_pairs(self) -> bool:
        """Whether covariances of different places matter to any layer or to the top."""
        return bool(self.stages[0]) or not isinstance(self.top, Flatten)

    def exact(self) -> ExactKernel:
        """The same kernel with whole covariances in memory, for few and small images."""
        return ExactKernel(*self.layers, self.top)

    def spaces(self, height: int, width: int) -> list[tuple[int, int]]:
        """The grid of places below every layer, and below the top.

        Raises:
            InvalidInputError: where a pooling does not divide the grid it is given.
        """
        found = [(height, width)]
        for layer in self.layers:
            side = side_of(layer) if isinstance(layer, AveragePool) else 1
            if height % side or width % side:
                raise InvalidInputError(
                    f"{self.name} pools {height}×{width} places in squares of {side}×{side}, which"
                    " does not come out even; give images of another size (32×32 suits every"
                    " Myrtle network)"
                )
            height, width = height // side, width // side
            found.append((height, width))
        return found

    def describe(self) -> dict[str, Any]:
        """All of it but the name, for a file: two architectures are the same if these are."""
        kind = type(self.top).__name__.removesuffix("Pool")
        size = {"size": self.top.size} if isinstance(self.top, LocalAverage) else {}
        return {"layers": list(map(describe, self.layers)), "top": {"kind": kind, **size}}


def side_of(layer: Convolution | AveragePool) -> int:
    """The side of the square that a layer works on."""
    return layer.window.size[0]


def body_of(skip: Skip) -> tuple[Layer, ...]:
    """The layers that are skipped over."""
    body: Any = skip.body
    if isinstance(body, Sequential):
        return tuple(layer for _, layer in body.named_layers())  # type: ignore[misc]
    return (body,)


def nonlinearities(layers: Iterable[Layer]) -> Iterator[Kernel]:
    """The kernels of layers, in the order in which covariances pass them."""
    for layer in layers:
        if isinstance(layer, Skip):
            yield from nonlinearities(body_of(layer))
        elif isinstance(layer, Kernel):
            yield layer


def describe(layer: Layer) -> dict[str, Any]:
    """A layer as plain values."""
    if isinstance(layer, Convolution):
        return {
            "kind": "Conv",
            "size": side_of(layer),
            "weight_variance": layer.weight_variance,
            "bias_variance": layer.bias_variance,
        }
    if isinstance(layer, AveragePool):
        return {"kind": "AveragePool", "size": side_of(layer)}
    if isinstance(layer, Skip):
        weight = _rounded(layer.weight)
        return {
            "kind": "Residual",
            "body": [describe(part) for part in body_of(layer)],
            "shortcut_weight": 1 - weight,
            "body_weight": weight,
        }
    if type(layer) is ArcCosine and layer.order == 1 and layer.bias_variance is None:
        factor = layer.weight_variance
        gain = 2.0 if factor is None else 2 * _rounded(factor.log_value.exp())
        return {"kind": "Relu", "gain": gain}
    if type(layer) is NormalisedGaussian:
        return {"kind": "Gaussian", "gamma": _rounded(layer.gamma.log_value.exp())}
    numbers = {name: tensor.tolist() for name, tensor in layer.state_dict().items()}
    return {**described(layer), "numbers": numbers}


def same(*layers: Layer | None) -> str:
    """A text that is equal for layers with equal descriptions."""
    return json.dumps([layer and describe(layer) for layer in layers], sort_keys=True)


def _rounded(value: Tensor) -> float:
    """The value as it was given: the parameter is its logarithm, which is rounded."""
    return float(f"{float(value):.12g}")


def _check(layer: Any) -> None:
    if isinstance(layer, Convolution | AveragePool):
        side = side_of(layer)
        convolves = isinstance(layer, Convolution)
        if convolves and side % 2 == 0:
            raise InvalidInputError(f"the size of a convolution is odd, got {side}")
        if layer.window != (Window.of(side, 1, "same") if convolves else Window.of(side, side)):
            raise InvalidInputError(
                "convolutions here are square, with stride 1 and padding 'same', and pooling is"
                f" over squares that do not overlap, got {layer.window}; use"
                " convdkm.exact.ExactKernel"
            )
    elif isinstance(layer, Skip):
        if layer.shortcut is not None or not 0 < float(layer.weight) < 1:
            raise InvalidInputError(
                "a Skip here has no layer in its shortcut, and a weight above 0 and below 1"
            )
        if not body_of(layer):
            raise InvalidInputError("the body of a residual sum is empty")
        for part in body_of(layer):
            if not isinstance(part, Convolution | Kernel):
                raise InvalidInputError(
                    "the body of a residual sum holds convolutions and nonlinearities, got"
                    f" {type(part).__name__}; put pooling between the sums"
                )
            _check(part)
    elif not isinstance(layer, Kernel):
        raise InvalidInputError(f"an architecture is made of layers, got {type(layer).__name__}")
    elif not layer.is_written_out:
        raise InvalidInputError(
            f"{type(layer).__name__} is no function of one number; derive it from Angular or"
            " Isotropic"
        )


def plain(depth: int, top: Top | None = None, *, bias_variance: float = 0.0) -> Architecture:
    """``depth`` times a 3×3 convolution and a ReLU (Novak et al., 2019; Arora et al., 2019).

    Args:
        depth: number of convolutions.
        top: :class:`convdkm.GlobalAveragePool` if not given.
        bias_variance: of every convolution.
    """
    if depth < 1:
        raise InvalidInputError(f"a network has at least one convolution, got depth={depth}")
    return _network(
        f"conv{depth}", (Convolution(3, bias_variance=bias_variance), ArcCosine()) * depth, top
    )


def residual(blocks: int, top: Top | None = None) -> Architecture:
    """A convolution, ``blocks`` sums with the branch ReLU, conv, ReLU, conv, and a last ReLU.

    Every sum weighs shortcut and branch by a half, so that variances neither grow nor shrink.
    """
    if blocks < 1:
        raise InvalidInputError(f"a residual network has at least one block, got blocks={blocks}")
    block = Skip(Sequential(ArcCosine(), Convolution(3), ArcCosine(), Convolution(3)))
    return _network(f"res{blocks}", (Convolution(3), *(block,) * blocks, ArcCosine()), top)


def _network(name: str, layers: tuple[Layer, ...], top: Top | None) -> Architecture:
    if isinstance(top, LocalAverage):
        return Architecture(f"{name}-lap{top.size}", layers, top)
    suffix = "vec" if isinstance(top, Flatten) else "gap"
    return Architecture(f"{name}-{suffix}", layers, GlobalAveragePool() if top is None else top)


def myrtle(depth: int, *, nonlinearity: Kernel | None = None) -> Architecture:
    """Myrtle 5, 7 or 10 (Shankar et al., 2020), after the finite networks of that name.

    3×3 convolutions with a ReLU each, in three groups with 2×2 average pooling after each of the
    first two; then all places are averaged, which on 32×32 images is three more poolings, and read
    out by the linear layer that makes the depth 5, 7 or 10.

    Args:
        depth: 5, 7 or 10.
        nonlinearity: ReLU if not given; the paper's best kernels have
            :class:`convdkm.NormalisedGaussian`.
    """
    if depth not in MYRTLE:
        raise InvalidInputError(f"the Myrtle networks are 5, 7 and 10 deep, got {depth}")
    chosen = ArcCosine() if nonlinearity is None else nonlinearity
    first, second, third = ((Convolution(3), chosen) * count for count in MYRTLE[depth])
    layers: tuple[Layer, ...] = (*first, AveragePool(2), *second, AveragePool(2), *third)
    suffix = "-gaussian" if isinstance(chosen, NormalisedGaussian) else ""
    return Architecture(f"myrtle{depth}{suffix}", layers, GlobalAveragePool())

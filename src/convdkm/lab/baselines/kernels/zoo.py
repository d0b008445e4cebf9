"""The architectures of the papers in Table 3, written from their descriptions."""

from __future__ import annotations

from convdkm.errors import InvalidInputError
from convdkm.exact import Convolution
from convdkm.kernels import ArcCosine, Kernel, NormalisedGaussian
from convdkm.lab.baselines.kernels.layers import Architecture, Layer, LocalAverage, Top
from convdkm.layers import AveragePool, Flatten, GlobalAveragePool, Sequential, Skip

MYRTLE = {5: (2, 1, 1), 7: (2, 2, 2), 10: (3, 3, 3)}
"""Convolutions before the first pooling, before the second and after it."""


def plain(depth: int, top: Top | None = None, *, bias_variance: float = 0.0) -> Architecture:
    """``depth`` times a 3×3 convolution and a ReLU (Novak et al., 2019; Arora et al., 2019).

    Args:
        depth: number of convolutions.
        top: :class:`convdkm.GlobalAveragePool` if not given.
        bias_variance: of every convolution.
    """
    if depth < 1:
        raise InvalidInputError(f"a network has at least one convolution, got depth={depth}")
    top = GlobalAveragePool() if top is None else top
    layers: tuple[Layer, ...] = (Convolution(3, bias_variance=bias_variance), ArcCosine()) * depth
    return Architecture(f"conv{depth}-{_short(top)}", layers, top)


def residual(blocks: int, top: Top | None = None) -> Architecture:
    """A convolution, ``blocks`` sums with the branch ReLU, conv, ReLU, conv, and a last ReLU.

    Every sum weighs shortcut and branch by a half, so that variances neither grow nor shrink.
    """
    if blocks < 1:
        raise InvalidInputError(f"a residual network has at least one block, got blocks={blocks}")
    top = GlobalAveragePool() if top is None else top
    block = Skip(Sequential(ArcCosine(), Convolution(3), ArcCosine(), Convolution(3)))
    return Architecture(
        f"res{blocks}-{_short(top)}", (Convolution(3), *(block,) * blocks, ArcCosine()), top
    )


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


def _short(top: Top) -> str:
    if isinstance(top, LocalAverage):
        return f"lap{top.size}"
    return "vec" if isinstance(top, Flatten) else "gap"

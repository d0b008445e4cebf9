r"""The arc-cosine kernel of order 1 and its angle, as polynomials in what a cosine lacks.

With the cosine :math:`x = c/h`, :math:`h = \sqrt{ab}`, and :math:`u = 1 - |x|`,

.. math::
    k_1 = h\left(\max(x, 0) + u^{3/2} r(u)\right), \qquad
    \pi u^{3/2} r(u) = \sqrt{u(2-u)} - 2(1-u)\arcsin\sqrt{u/2},

and the angle is :math:`\arccos|x| = \sqrt u\,t(u)`. Both r and t are smooth where they are needed:
their nearest singularity is at u = 2, so that a short polynomial takes the place of the angle, as
precise as the numbers themselves. The kernel's slope in x is finite, so that the rounding of x does
no harm. All by interpolation at Chebyshev's nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_SINGLE = (
    0.00016558550229587562,
    -1.0112491988163717e-05,
    0.0006537140814849389,
    0.0023878848222679814,
    0.01500735753322431,
    0.3001054096005962,
)
"""r, highest power first; the error of u^(3/2) r(u) is below 5e-8."""

_DOUBLE = (
    1.649376186704804e-07,
    -1.0320320210270318e-06,
    3.122797236559908e-06,
    -5.7194460595988465e-06,
    7.229972599882493e-06,
    -6.260420548328054e-06,
    4.471610999228698e-06,
    -1.1711648904343405e-06,
    2.840347225937841e-06,
    5.597039148010689e-06,
    1.6307253182092548e-05,
    4.841407302919641e-05,
    0.00015541717475577531,
    0.0005582318249220994,
    0.002411561561610428,
    0.015005271935946796,
    0.3001054387190354,
)
"""The same for float64; the error is below 2e-17."""

ANGLE = (
    0.0012117377709728316,
    -0.0019906429652962743,
    0.003338417019563167,
    0.0014788598162134292,
    0.008216730965504127,
    0.02647448250003448,
    0.11785316670027057,
    1.4142135464083156,
)
"""t for float32, highest power first; the error of √u t(u) is below 3e-8."""


def kernel_coefficients(dtype: torch.dtype) -> tuple[float, ...]:
    """Of r, highest power first."""
    return _DOUBLE if dtype == torch.float64 else _SINGLE


def lacking(cosine: Tensor) -> Tensor:
    """u; rounding may have carried the cosine a little beyond ±1."""
    return (1 - cosine.abs()).clamp(min=0)


def evaluated(coefficients: Sequence[float], u: Tensor) -> Tensor:
    """A polynomial, its coefficients from the highest power down."""
    first, *others = coefficients
    total = torch.full_like(u, first)
    for coefficient in others:
        total = total * u + coefficient
    return total

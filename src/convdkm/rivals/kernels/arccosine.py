r"""The arc-cosine kernel of order 1 of cosines, in place and without inverse cosines.

For a cosine ρ, :math:`k(\rho) = \frac1\pi(\sin\theta + (\pi - \theta)\rho)` with
:math:`\theta = \arccos\rho`. Put :math:`u = 1 - |\rho|`. For ρ ≥ 0 it is
:math:`\rho + h(u)`, for ρ < 0 it is :math:`h(u)`, with one function of one sign,

.. math:: h(u) = \tfrac1\pi (\sin\theta - \theta\cos\theta)\big|_{\cos\theta = 1 - u}
               = u^{3/2}\, q(u), \qquad k(\rho) = \max(\rho, 0) + h(1 - |\rho|),

and q is smooth: its nearest singularity is at ρ = −1 seen from ρ ≥ 0, u = 2. A polynomial of degree
5 meets it on [0, 1] to 5·10⁻⁸, one of degree 18 to 10⁻¹⁵. Nothing is lost near ρ = 1, where the
formula with the angle subtracts numbers that are nearly equal.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor

_DEGREE = {torch.float32: 5, torch.float64: 18}


def relu_of_cosines_(cosines: Tensor, scratch: Tensor | None = None) -> Tensor:
    """k(ρ), scaled to k(1) = 1, written over ρ.

    Args:
        cosines: ρ, contiguous; rounding may have carried them a little beyond ±1.
        scratch: two tensors of the same shape stacked, to be overwritten; made if not given.
    """
    factors = coefficients(cosines.dtype)
    if scratch is None:
        scratch = cosines.new_empty((2, *cosines.shape))
    rest, value = scratch[0], scratch[1]
    one = factors.new_ones(())
    torch.abs(cosines, out=rest)
    torch.sub(one, rest, out=rest).clamp_(min=0)
    torch.add(factors[1], rest, alpha=float(factors[0]), out=value)
    for factor in factors[2:]:
        torch.addcmul(factor, value, rest, out=value)
    value.mul_(rest)
    return cosines.clamp_(min=0).addcmul_(value, rest.sqrt_())


def relu_of_cosines(cosines: Tensor, factors: tuple[float, ...]) -> Tensor:
    """The same as a new tensor, for a compiler to join; ``factors`` are :func:`coefficients`."""
    rest = (1 - cosines.abs()).clamp(min=0)
    value = factors[0] * rest + factors[1]
    for factor in factors[2:]:
        value = value * rest + factor
    return cosines.clamp(min=0) + value * rest * rest.sqrt()


@lru_cache
def coefficients(dtype: torch.dtype) -> Tensor:
    """Of q, the highest power first."""
    fit = Chebyshev.interpolate(_smooth_factor, _DEGREE[dtype], domain=[0, 1])
    powers = fit.convert(kind=Polynomial, domain=[-1, 1], window=[-1, 1])
    return torch.tensor(powers.coef[::-1].copy(), dtype=dtype)


def _smooth_factor(rest: np.ndarray) -> np.ndarray:
    r"""q(u), by the series of :math:`(\sin\theta - \theta\cos\theta)/\theta^3`."""
    angle = 2 * np.arcsin(np.sqrt(rest / 2))
    root = np.sqrt(rest)
    ratio = np.divide(angle, root, out=np.full_like(rest, math.sqrt(2)), where=root > 0)
    series = sum(
        (-1) ** (k + 1) * 2 * k * angle ** (2 * k - 2) / math.factorial(2 * k + 1)
        for k in range(1, 20)
    )
    return np.asarray(series * ratio**3 / math.pi)

r"""The arc-cosine kernel of order 1 of cosines, in place and without inverse cosines.

For a cosine ρ, :math:`k(\rho) = \frac1\pi(\sin\theta + (\pi - \theta)\rho)` with
:math:`\theta = \arccos\rho`. It is :math:`\max(\rho, 0) + u^{3/2} r(u)` with
:math:`u = 1 - |\rho|` and the polynomial r of :mod:`convdkm.kernels.arccos`. Nothing is lost
near ρ = 1, where the formula with the angle subtracts numbers that are nearly equal.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from convdkm.kernels.arccos import relu, relu_coefficients


def relu_of_cosines_(cosines: Tensor, scratch: Tensor | None = None) -> Tensor:
    """k(ρ), scaled to k(1) = 1, written over ρ.

    Args:
        cosines: ρ, contiguous; rounding may have carried them a little beyond ±1.
        scratch: two tensors of the same shape stacked, to be overwritten; made if not given.
    """
    factors = _coefficients(cosines.dtype)
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


def relu_of_cosines(cosines: Tensor) -> Tensor:
    """The same as a new tensor, for a compiler to join."""
    return relu(cosines.clamp(-1, 1))


@lru_cache
def _coefficients(dtype: torch.dtype) -> Tensor:
    return torch.tensor(relu_coefficients(dtype), dtype=dtype)

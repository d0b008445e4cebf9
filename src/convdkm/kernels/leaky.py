r"""The kernel of the leaky ReLU: slope 1 for positive inputs, α for negative ones.

With :math:`\phi(u) = \max(u, 0) - \alpha\max(-u, 0)` and :math:`\kappa_1` of the ReLU
(:class:`convdkm.ArcCosine`),

.. math::
    E[\phi(u)\phi(v)] = \tfrac12 h\left((1 + \alpha^2)\kappa_1(\rho)
                        - 2\alpha\kappa_1(-\rho)\right).

As :math:`\kappa_1(-\rho) = \kappa_1(\rho) - \rho`, and scaled to :math:`\kappa(1) = 1`,

.. math:: \kappa(\rho) = \frac{(1 - \alpha)^2\kappa_1(\rho) + 2\alpha\rho}{1 + \alpha^2}.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convdkm.errors import InvalidInputError
from convdkm.kernels.angular import Angular
from convdkm.kernels.arccos import relu, relu_with_slope, step


class LeakyReLU(Angular):
    r"""Kernel :math:`\sigma_w^2\,h\kappa(\rho) + \sigma_b^2` of networks with a leaky ReLU.

    It is scaled so that :math:`k(x, x) = G_{xx}`, as that of the ReLU is. In neural-tangents it is
    ``stax.LeakyRelu(slope)`` with ``W_std`` :math:`= \sigma_w\sqrt{2/(1 + \alpha^2)}` in the layer
    after it.

    Args:
        slope: α, of negative inputs. 0 is the ReLU, 1 the linear kernel, −1 the absolute value.
        weight_variance: :math:`\sigma_w^2`; 1 if not given.
        bias_variance: :math:`\sigma_b^2`; none if not given.
        learn: learn those of the two variances that are given.
    """

    keeps_norm = True

    def __init__(
        self,
        slope: float = 0.01,
        *,
        weight_variance: float | None = None,
        bias_variance: float | None = None,
        learn: bool = True,
    ) -> None:
        super().__init__(weight_variance=weight_variance, bias_variance=bias_variance, learn=learn)
        if not math.isfinite(slope):
            raise InvalidInputError(f"the slope of a leaky ReLU is a finite number, got {slope}")
        self.negative_slope = float(slope)

    def _parts(self) -> tuple[float, float]:
        """How much of it is a ReLU, and how much is linear."""
        total = 1 + self.negative_slope**2
        return (1 - self.negative_slope) ** 2 / total, 2 * self.negative_slope / total

    def of_cosine(self, cosine: Tensor) -> Tensor:
        bent, straight = self._parts()
        return torch.add(cosine * straight, relu(cosine), alpha=bent)

    def slope(self, cosine: Tensor) -> Tensor:
        bent, straight = self._parts()
        return step(cosine) * bent + straight

    def with_slope(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        bent, straight = self._parts()
        value, slope = relu_with_slope(cosine)
        return torch.add(cosine * straight, value, alpha=bent), slope * bent + straight

    def extra_repr(self) -> str:
        return f"slope={self.negative_slope:g}"

r"""The normalised Gaussian kernel (Shankar et al., 2020; Mairal et al., 2014).

Where cosines are small it is :math:`he^{-\gamma}(1 + \gamma\rho + \tfrac12\gamma^2\rho^2)`: its
quadratic part is :math:`\tfrac12\gamma\rho` of the linear one. That of the arc-cosine kernel of
order 1 is :math:`\rho/\pi` of it, so that with :math:`\gamma > 0.64` a machine is less linear.
"""

from __future__ import annotations

import torch
from torch import Tensor

from convdkm.kernels.angular import Angular
from convdkm.kernels.base import Positive
from convdkm.kernels.blocks import Scratch
from convdkm.layers.base import keeps


class NormalisedGaussian(Angular):
    r"""Normalised Gaussian kernel (Shankar et al., 2020).

    .. math:: k(x, y) = |x||y| \exp\left(\gamma\left(\frac{G_{xy}}{|x||y|} - 1\right)\right),
              \qquad |x| = \sqrt{G_{xx}}

    It keeps the norm of its input, :math:`k(x, x) = G_{xx}`, and is zero where an input is zero.

    Args:
        gamma: γ; the larger, the less linear.
        learn: learn γ.
    """

    keeps_norm = True

    def __init__(self, gamma: float = 1.0, *, learn: bool = False) -> None:
        super().__init__()
        self.gamma = Positive("gamma", gamma, learn=learn)

    def of_cosine(self, cosine: Tensor) -> Tensor:
        return torch.exp(self.gamma(cosine) * (cosine - 1))

    def of_cosine_(self, cosine: Tensor, scratch: Scratch) -> Tensor:
        if not keeps(self, NormalisedGaussian, "of_cosine"):
            return super().of_cosine_(cosine, scratch)
        return cosine.sub_(1).mul_(self.gamma(cosine)).exp_()

    def slope(self, cosine: Tensor) -> Tensor:
        return self.gamma(cosine) * self.of_cosine(cosine)

    def with_slope(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        value = self.of_cosine(cosine)
        return value, self.gamma(cosine) * value

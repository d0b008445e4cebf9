r"""The arc-sine kernel (Williams, 1997): the Gram of infinitely many erf features.

.. math:: k = \frac2\pi\arcsin\frac{2c}{\sqrt{(1 + 2a)(1 + 2b)}} = \frac2\pi\arcsin\rho,
          \qquad \rho = \frac{c}{\sqrt{(a + \frac12)(b + \frac12)}}

is a kernel of a cosine, with :math:`a + \tfrac12` and :math:`b + \tfrac12` in the places of a and
b.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convdkm.kernels.angular import Angular
from convdkm.kernels.arccos import sine


class ArcSine(Angular):
    r"""Arc-sine kernel :math:`\sigma_w^2\,\frac2\pi\arcsin\rho + \sigma_b^2` of networks with erf.

    It is bounded, :math:`|k| < 1`, and nearly linear where variances are small,
    :math:`k \approx \frac4\pi c`. neural-tangents' ``stax.Erf()`` is the same, its ``W_std`` and
    ``b_std`` of the layer after it being :math:`\sigma_w` and :math:`\sigma_b`.

    Args:
        weight_variance: :math:`\sigma_w^2`; 1 if not given.
        bias_variance: :math:`\sigma_b^2`; none if not given.
        learn: learn those of the two variances that are given.
    """

    degree = 0
    shift = 0.5

    def of_cosine(self, cosine: Tensor) -> Tensor:
        return torch.asin(cosine) * (2 / math.pi)

    def slope(self, cosine: Tensor) -> Tensor:
        # A cosine is below 1, but rounds to it where variances are large.
        return 2 / (math.pi * sine(cosine).clamp(min=torch.finfo(cosine.dtype).eps ** 0.5))

r"""What images show of a Gram layer: the variance explained, and the spread of correlations."""

from __future__ import annotations

import torch
from torch import Tensor

from convdkm.errors import NotFiniteError
from convdkm.ops.base import Blocks

AT_A_TIME = 16
"""Images whose blocks are held in float64."""


class Meter:
    r"""Sees the blocks that enter and leave a Gram layer, batch after batch.

    Args:
        whitening: W with :math:`W^TW = K_{ii}^{-1}`, of the kernel that enters.
        ii: :math:`G_{ii}`, of the Gram that leaves.
    """

    def __init__(self, whitening: Tensor, ii: Tensor) -> None:
        deviation = ii.diagonal().clamp(min=0).sqrt()
        self._whitening, self._deviation = whitening, deviation
        self._share, self._places = 0.0, 0
        self._images = 0
        self._shift = self._sum = self._squares = torch.zeros((), dtype=ii.dtype)

    def see(self, incoming: Blocks, outgoing: Blocks) -> None:
        """Take the data blocks of some images into account."""
        parts = (block.split(AT_A_TIME) for block in (*incoming, *outgoing))
        for k_it, k_tt, g_it, g_tt in zip(*parts, strict=True):
            self._see_kernel(k_it.double(), k_tt.double())
            self._see_gram(g_it.double(), g_tt.double())

    @property
    def explained(self) -> float | None:
        r"""Share of the variance of data that the inducing points explain.

        .. math:: 1 - \frac{k_{tt} - K_{ti}K_{ii}^{-1}K_{it}}{k_{tt}},

        the mean over places t of images; None where no place has a variance.
        """
        return self._share / self._places if self._places else None

    @property
    def spread(self) -> float | None:
        r"""How much correlations with inducing points differ from image to image.

        With :math:`\rho_{i,ps} = G_{i,ps}/\sqrt{G_{ii}G_{ps,ps}}` between inducing point i and
        place s of image p,

        .. math:: \sqrt{\operatorname{mean}_{i,s}\operatorname{var}_p\,\rho_{i,ps}}.

        A point or place without variance has the correlation 0; None without images.
        """
        if not self._images:
            return None
        mean = self._sum / self._images
        variance = (self._squares / self._images - mean.square()).clamp(min=0)
        return float(variance.mean().sqrt())

    def _see_kernel(self, it: Tensor, tt: Tensor) -> None:
        white = torch.einsum("ij,nj...->ni...", self._whitening, it)
        present = tt > 0
        shares = (white.square().sum(1)[present] / tt[present]).clamp(max=1)
        self._share += float(shares.sum())
        self._places += len(shares)

    def _see_gram(self, it: Tensor, tt: Tensor) -> None:
        deviation = tt.clamp(min=0).sqrt().unsqueeze(1)
        scale = deviation * self._deviation.reshape(-1, *[1] * (it.ndim - 2))
        correlation = torch.where(scale > 0, it / scale, 0.0)
        if not self._images:  # figures about the first images' mean lose no digits to it
            self._shift = correlation.mean(0)
        apart = correlation - self._shift
        self._sum = self._sum + apart.sum(0)
        self._squares = self._squares + apart.square().sum(0)
        self._images += len(apart)


def whitening_of(matrix: Tensor) -> Tensor:
    """W with WᵀW = matrix⁻¹; directions that rounding alone has made are left out."""
    finite = torch.isfinite(matrix)
    if not bool(finite.all()):
        bad = int((~finite).sum())
        raise NotFiniteError("the kernel matrix K_ii", matrix.dtype, len(matrix), bad)
    values, vectors = torch.linalg.eigh(matrix)
    floor = values[-1].clamp(min=0) * len(values) * torch.finfo(values.dtype).eps
    inverse = torch.where(
        values > floor, values.clamp(min=1e-300).rsqrt(), torch.zeros_like(values)
    )
    return inverse[:, None] * vectors.T

"""The first Gram matrix, of patches of images or of vectors (after Eq. 3, and Eq. 15)."""

from __future__ import annotations

import numpy as np

from oracle.blocks import Array, Blocks
from oracle.windows import Pads, Place, windows


def vector_gram(inducing: Array, inputs: Array) -> Blocks:
    """G⁰ = XXᵀ / N₀ over inducing vectors ``(P, N₀)`` and inputs ``(N, N₀)``."""
    length = inducing.shape[1]
    tt = np.array([vector @ vector for vector in inputs]) / length
    return Blocks(inducing @ inducing.T / length, inputs @ inducing.T / length, tt)


def patch_gram(
    inducing: Array, images: Array, *, stride: Place, dilation: Place, padding: Pads, border: str
) -> Blocks:
    """G⁰ between inducing patches ``(P, C, *size)`` and every patch of images ``(N, C, *space)``.

    Products are averaged over the C·D entries of a patch, zeros around the image among them.
    ``border="inside"`` averages the variance of a patch over its places inside the image.
    """
    points, channels, *size = inducing.shape
    count, space = images.shape[0], images.shape[2:]
    entries = channels * int(np.prod(size))
    flat = inducing.reshape(points, -1)
    output, positions = windows(space, tuple(size), stride, dilation, padding)
    it, tt = np.zeros((count, points, *output)), np.zeros((count, *output))
    for place, under in positions:
        inside = sum(below is not None for _, below in under)
        for image in range(count):
            patch = np.zeros((channels, *size))
            for offset, below in under:
                if below is not None:
                    patch[(slice(None), *offset)] = images[(image, slice(None), *below)]
            it[(image, slice(None), *place)] = flat @ patch.ravel() / entries
            divisor = entries if border == "zero" else channels * inside
            tt[(image, *place)] = (patch * patch).sum() / divisor
    return Blocks(flat @ flat.T / entries, it, tt)

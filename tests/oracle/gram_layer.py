"""The learned Gram matrix of a layer and what it predicts (Eq. 5 and 7)."""

from __future__ import annotations

import numpy as np

from oracle.blocks import Array, Blocks


def predict_gram(kernel: Blocks, G_ii: Array) -> Blocks:
    """G_it and the diagonal of G_tt from the learned G_ii and the kernel of the layer below.

    G_it = G_ii K_ii⁻¹ K_it; G_tt = K_tt − K_ti K_ii⁻¹ K_it + K_ti K_ii⁻¹ G_ii K_ii⁻¹ K_it.
    """
    inverse = np.linalg.inv(kernel.ii)
    it, tt = np.zeros_like(kernel.it), np.zeros_like(kernel.tt)
    for image in range(len(kernel.tt)):
        for place in kernel.places:
            K_it = kernel.it[(image, slice(None), *place)]
            it[(image, slice(None), *place)] = G_ii @ inverse @ K_it
            tt[(image, *place)] = (
                kernel.tt[(image, *place)]
                - K_it @ inverse @ K_it
                + K_it @ inverse @ G_ii @ inverse @ K_it
            )
    return Blocks(G_ii, it, tt)


def gaussian_kl(covariance: Array, prior: Array, mean: Array | None = None) -> float:
    """D_KL(N(mean, covariance) ‖ N(0, prior)); the mean is zero in Eq. 5."""
    size = len(prior)
    mean = np.zeros(size) if mean is None else mean
    inverse = np.linalg.inv(prior)
    log_ratio = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(covariance)[1]
    return float(0.5 * (np.trace(inverse @ covariance) + mean @ inverse @ mean - size + log_ratio))

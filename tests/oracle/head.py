"""The sparse Gaussian process on the final Gram (appendix D)."""

from __future__ import annotations

import numpy as np

from oracle.blocks import Array, Blocks
from oracle.gram_layer import gaussian_kl


def head_marginals(kernel: Blocks, mu: Array, A: Array) -> tuple[Array, Array]:
    """Mean and variance of every output at every image, each ``(N, outputs)`` (appendix D.2.1).

    ``mu`` is ``(outputs, P)`` and ``A`` is ``(outputs, P, P)``.
    """
    inverse = np.linalg.inv(kernel.ii)
    mean, variance = np.zeros((len(kernel.tt), len(mu))), np.zeros((len(kernel.tt), len(mu)))
    for image, (K_it, k_tt) in enumerate(zip(kernel.it, kernel.tt, strict=True)):
        for output in range(len(mu)):
            mean[image, output] = K_it @ inverse @ mu[output]
            variance[image, output] = (
                k_tt - K_it @ inverse @ K_it + K_it @ inverse @ A[output] @ inverse @ K_it
            )
    return mean, variance


def head_kl(K_ii: Array, mu: Array, A: Array) -> Array:
    """D_KL(N(μ_λ, A_λ) ‖ N(0, K_ii)) of every output."""
    pairs = zip(mu, A, strict=True)
    return np.array([gaussian_kl(covariance, K_ii, mean) for mean, covariance in pairs])

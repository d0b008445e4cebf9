"""Normalisation and scaling of Gram matrices (appendix C), and centring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oracle.blocks import Array, Blocks


def inducing_norms(ii: Array, scheme: str) -> Array:
    """a_i of appendix C.1."""
    points = len(ii)
    if scheme == "none":
        return np.ones(points)
    if scheme == "batch":
        return np.full(points, np.sqrt(sum(ii[j, j] for j in range(points)) / points))
    return np.array([np.sqrt(ii[j, j]) for j in range(points)])


def data_variance(tt: Array, scheme: str) -> Array:
    """A² of appendix C.2: a number for ``batch``, one for each place for ``location``, else N·S."""
    if scheme == "batch":
        return np.array(tt.sum() / tt.size)
    if scheme == "location":
        return sum(tt[j] for j in range(len(tt))) / len(tt)
    variance = np.ones_like(tt)
    for index in np.ndindex(*tt.shape):
        if scheme == "image":
            variance[index] = tt[index[0]].sum() / tt[index[0]].size
        elif scheme == "local":
            variance[index] = tt[index]
    return variance


def normalise(
    gram: Blocks,
    inducing: str,
    data: str,
    *,
    psi: Array | float = 1.0,
    Psi: Array | float = 1.0,
    variance: Array | None = None,
) -> Blocks:
    """N(G) of appendix C, with scales ψ (one, or one for each point) and Ψ (one, or by place).

    A feature vector i is multiplied by ψ_i / a_i, so that N_ii has ψ_i ψ_j where the paper prints
    ψ_i²; the two are the same unless ψ is local. ``variance`` replaces the A² of this batch.
    """
    points, count = len(gram.ii), len(gram.tt)
    a = inducing_norms(gram.ii, inducing)
    A = np.sqrt(data_variance(gram.tt, data) if variance is None else variance)
    A = np.broadcast_to(A, gram.tt.shape)
    psi = np.broadcast_to(psi, (points,))
    Psi = np.broadcast_to(Psi, gram.space)
    ii, it, tt = np.zeros_like(gram.ii), np.zeros_like(gram.it), np.zeros_like(gram.tt)
    for i in range(points):
        for j in range(points):
            ii[i, j] = gram.ii[i, j] * psi[i] * psi[j] / (a[i] * a[j])
    for image in range(count):
        for place in gram.places:
            scale = Psi[place] / A[(image, *place)]
            tt[(image, *place)] = gram.tt[(image, *place)] * scale**2
            it[(image, slice(None), *place)] = (
                gram.it[(image, slice(None), *place)] * psi / a * scale
            )
    return Blocks(ii, it, tt)


def inducing_mean(it: Array) -> Array:
    """Mean of G_it over images and places, for each inducing point."""
    return np.array([it[:, i].sum() / it[:, i].size for i in range(it.shape[1])])


def centre(gram: Blocks, mean: Array | None = None) -> Blocks:
    """The Gram of features f_t − Σ_i β_i f_i with β = G_ii⁻¹ mean, by default of this batch."""
    mean = inducing_mean(gram.it) if mean is None else mean
    beta = np.linalg.inv(gram.ii) @ mean
    it, tt = np.zeros_like(gram.it), np.zeros_like(gram.tt)
    for image in range(len(gram.tt)):
        for place in gram.places:
            G_it = gram.it[(image, slice(None), *place)]
            it[(image, slice(None), *place)] = G_it - gram.ii @ beta
            tt[(image, *place)] = gram.tt[(image, *place)] - 2 * beta @ G_it + beta @ gram.ii @ beta
    return Blocks(gram.ii, it, tt)


def running_average(first: Array, batches: Sequence[Array], momentum: float) -> Array:
    """``r ← (1 − momentum) r + momentum · batch``, starting at ``first``."""
    average = first
    for batch in batches:
        average = (1 - momentum) * average + momentum * batch
    return average

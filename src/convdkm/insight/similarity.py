r"""How alike two representations are, and an order of points that shows their clusters."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from convdkm.errors import InvalidInputError

FEWEST = 4
"""Images below which the estimate is not defined."""
CAREFUL_UP_TO = 300
"""Points whose order is improved leaf by leaf; beyond, the tree alone decides."""


def cka(one: Tensor, other: Tensor) -> float:
    r"""Centred kernel alignment of two kernel matrices over the same N images.

    .. math:: \mathrm{CKA}(K, L) = \frac{\mathrm{HSIC}(K, L)}
              {\sqrt{\mathrm{HSIC}(K, K)\,\mathrm{HSIC}(L, L)}}

    with the unbiased estimate of HSIC (Song et al., 2012), so that many features of few images do
    not look alike by chance. With :math:`\tilde K` for K without its diagonal,

    .. math:: \mathrm{HSIC}(K, L) = \frac1{N(N-3)}\left[\mathrm{tr}\,\tilde K\tilde L
              + \frac{1^T\tilde K 1\;1^T\tilde L 1}{(N-1)(N-2)}
              - \frac{2}{N-2} 1^T\tilde K\tilde L 1\right].

    It is 1 where the two agree but for scale and rotation of the features, about 0 where they have
    nothing in common, and NaN where one of them is constant.
    """
    if one.shape != other.shape or one.ndim != 2 or one.shape[0] != one.shape[1]:
        raise InvalidInputError(
            "CKA compares two square matrices over the same images, got shapes"
            f" {tuple(one.shape)} and {tuple(other.shape)}"
        )
    if len(one) < FEWEST:
        raise InvalidInputError(f"CKA needs {FEWEST} images or more, got {len(one)}")
    squared = _hsic(one, one) * _hsic(other, other)
    return float(_hsic(one, other) / squared.sqrt()) if squared > 0 else float("nan")


def _hsic(one: Tensor, other: Tensor) -> Tensor:
    count = len(one)
    one, other = (each.double() - torch.diag(each.double().diagonal()) for each in (one, other))
    left, right = one.sum(0), other.sum(0)
    value = (one * other).sum() + left.sum() * right.sum() / ((count - 1) * (count - 2))
    return (value - 2 * (left @ right) / (count - 2)) / (count * (count - 3))


def class_kernel(labels: Tensor) -> Tensor:
    """1 where two images have the same class, else 0: the kernel of a perfect classifier."""
    return (labels[:, None] == labels[None, :]).double()


def correlation(gram: Tensor) -> Tensor:
    r""":math:`G_{ij}/\sqrt{G_{ii}G_{jj}}`; 0 beside a point without variance."""
    deviation = gram.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(deviation > 0, 1 / deviation, torch.zeros_like(deviation))
    return gram * inverse[:, None] * inverse[None, :]


def cluster_order(gram: Tensor) -> list[int]:
    """An order of the points that puts those beside each other that are alike.

    Hierarchical clustering by average linkage of one minus the correlation.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(gram) < 3:
        return list(range(len(gram)))
    distance = (1 - correlation(gram.detach().double().cpu())).clamp(min=0).nan_to_num(1.0)
    distance = 0.5 * (distance + distance.T)
    condensed = squareform(distance.fill_diagonal_(0).numpy(), checks=False)
    tree = linkage(condensed, "average", optimal_ordering=len(gram) <= CAREFUL_UP_TO)
    order: list[int] = np.asarray(leaves_list(tree)).tolist()
    return order

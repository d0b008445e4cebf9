r"""Spherical k-means: unit vectors near the directions of many others.

Maximises the mean over vectors x of norm one of :math:`\max_j ⟨z_j, x⟩` over anchors z of norm one,
by turns: every x goes to the z it is nearest to, and every z to the direction of the sum of its x.
Neither turn can lower the objective.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from convdkm.errors import InvalidInputError

ITERATIONS = 50
"""The largest number of iterations."""
ENOUGH = 1e-5
"""The search ends when an iteration gains less than this."""
AT_ONCE = 1 << 22
"""Inner products in memory at a time."""


def nearest(vectors: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    """The largest inner product of every vector ``(n, d)`` with an anchor ``(k, d)``, and which."""
    parts = vectors.split(max(AT_ONCE // len(anchors), 1))
    found = [torch.max(part @ anchors.mT, dim=1) for part in parts]
    return torch.cat([each.values for each in found]), torch.cat([each.indices for each in found])


def spherical_kmeans(
    vectors: Tensor,
    count: int,
    generator: torch.Generator,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Tensor, list[float]]:
    """Anchors ``(count, d)`` of norm one, and the objective before every iteration and at the end.

    The first anchors are vectors chosen at random. An anchor that is nearest to no vector moves to
    the vector with the smallest cosine to its own anchor.

    Args:
        vectors: ``(n, d)``, of any norm; zero vectors have no direction and are left out.
        count: number of anchors.
        generator: of the random choice, on the CPU.
        stop: called before every iteration but the first; ends the search when it returns True.
    """
    if vectors.ndim != 2 or not bool(vectors.isfinite().all()):
        raise InvalidInputError(
            f"k-means takes finite vectors (n, d), got {tuple(vectors.shape)} with"
            f" {int((~vectors.isfinite()).sum())} values that are not finite"
        )
    norms = vectors.norm(dim=1)
    points = F.normalize(vectors[norms > 1e-6 * norms.max()], dim=1)
    if len(points) < count:
        raise InvalidInputError(
            f"{count} anchors need as many patches that are not zero, and there are {len(points)};"
            " use fewer filters, or more images"
        )
    start = torch.randperm(len(points), generator=generator)[:count]
    anchors = points[start.to(points.device)].clone()
    curve: list[float] = []
    while True:
        cosines, which = nearest(points, anchors)
        curve.append(float(cosines.mean()))
        settled = len(curve) > 1 and (curve[-1] - curve[-2] < ENOUGH or stop())
        if settled or len(curve) > ITERATIONS:
            return anchors, curve
        sums = torch.zeros_like(anchors).index_add_(0, which, points)
        anchors, alone = F.normalize(sums, dim=1), sums.norm(dim=1) <= 1e-6
        if bool(alone.any()):
            anchors[alone] = points[cosines.argsort()[: int(alone.sum())]]

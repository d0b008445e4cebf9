r"""One layer of a convolutional kernel network (Mairal, NIPS 2016).

A layer takes every patch x of the maps below, and represents it in the span of p anchor points
:math:`Z = (z_1, \dots, z_p)` on the unit sphere. With the kernel of patches

.. math:: K(x, x') = |x|\, |x'|\, κ\big(⟨x/|x|, x'/|x'|⟩\big), \qquad κ(u) = e^{α(u-1)},

the coordinates of the projection of x's feature onto the span of the anchors' features are

.. math:: ψ(x) = |x|\, \big(κ(Z^⊤Z) + εI\big)^{-1/2}\, κ\big(Z^⊤ x/|x|\big),

so that :math:`⟨ψ(x), ψ(x')⟩` is the Nyström approximation of K. Maps of ψ are then averaged by
Gaussian weights and subsampled.

Without supervision the anchors are found by spherical k-means, which maximises the mean over
patches x of norm one of :math:`\max_j ⟨z_j, x⟩` by turns: every x goes to the z it is nearest to,
and every z to the direction of the sum of its x. Neither turn can lower the objective.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from convdkm.checks import check_positive, check_positive_number
from convdkm.errors import InvalidInputError
from convdkm.layers import Window

NO_NORM = 1e-12
"""Patches whose squared norm is less than about this count as zero."""
ITERATIONS, ENOUGH = 50, 1e-5
"""k-means ends after so many iterations, or when one gains less than this."""
AT_ONCE = 1 << 22
"""Inner products in memory at a time."""


class _InverseRoot(torch.autograd.Function):
    r"""A^{-1/2} of a symmetric positive definite matrix, with a derivative that is always finite.

    With :math:`A = U Λ U^⊤` and :math:`f(λ) = λ^{-1/2}`, the derivative in the direction E is
    :math:`U (P ∘ U^⊤ E U) U^⊤`, where P holds the divided differences of f:

    .. math:: P_{ij} = \frac{f(λ_i) - f(λ_j)}{λ_i - λ_j}
              = \frac{-1}{\sqrt{λ_i λ_j}\, (\sqrt{λ_i} + \sqrt{λ_j})}.

    The second form holds for equal eigenvalues too, where the derivative of eigenvectors fails.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(matrix)
        roots = values.clamp(min=torch.finfo(matrix.dtype).tiny).sqrt()
        ctx.save_for_backward(roots, vectors)
        return (vectors / roots) @ vectors.mT

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        roots, vectors = ctx.saved_tensors
        columns = roots.unsqueeze(1)
        divided = -1 / (roots * columns * (roots + columns))
        grad = (grads[0] + grads[0].mT) / 2
        return vectors @ (divided * (vectors.mT @ grad @ vectors)) @ vectors.mT


def inverse_root(matrix: Tensor) -> Tensor:
    """The symmetric A^(−1/2) of a symmetric positive definite matrix."""
    result: Tensor = _InverseRoot.apply(matrix)
    return result


def patches(maps: Tensor, size: int) -> Tensor:
    """Every patch of maps ``(N, C, H, W)`` as vectors ``(N, C·size², H·W)``; zeros outside."""
    return F.unfold(Window.of(size, padding="same").pad(maps), size)


def gaussian_weights(subsampling: int) -> Tensor:
    """Weights of the pooling along one side: exp(−d²/s²) for |d| ≤ s, summing to one."""
    distance = torch.arange(-subsampling, subsampling + 1, dtype=torch.float64)
    weights = torch.exp(-distance.square() / subsampling**2)
    return weights / weights.sum()


def pool(maps: Tensor, s: int) -> Tensor:
    """Gaussian averages of maps at every s-th pixel, with zeros outside; s = 1 changes nothing."""
    if s == 1:
        return maps
    channels = maps.shape[1]
    weights = gaussian_weights(s).to(maps).expand(channels, 1, 1, -1)
    maps = F.conv2d(maps, weights.mT, stride=(s, 1), padding=(s, 0), groups=channels)
    return F.conv2d(maps, weights, stride=(1, s), padding=(0, s), groups=channels)


class CKNLayer(nn.Module):
    """Maps ``(N, C, H, W)`` to maps ``(N, filters, ⌈H/s⌉, ⌈W/s⌉)``; see the module.

    Args:
        channels: C, of the input maps.
        filters: p, the number of anchor points.
        size: side of the patches.
        subsampling: s, the stride of the pooling; 1 for no pooling.
        alpha: α of κ; a larger α makes a narrower kernel.
        epsilon: ε, relative to κ(1) = 1.
    """

    def __init__(
        self,
        channels: int,
        filters: int,
        size: int = 3,
        subsampling: int = 2,
        *,
        alpha: float = 4.0,
        epsilon: float = 1e-3,
    ) -> None:
        super().__init__()
        check_positive(channels=channels, filters=filters, size=size, subsampling=subsampling)
        check_positive_number(alpha=alpha, epsilon=epsilon)
        self.size, self.subsampling = size, subsampling
        self.alpha, self.epsilon = alpha, epsilon
        self.anchors = nn.Parameter(F.normalize(torch.randn(filters, channels * size**2), dim=1))

    @torch.no_grad()
    def set_anchors(self, anchors: Tensor) -> None:
        """Set the anchor points ``(filters, C·size²)``, scaled to unit norm."""
        if anchors.shape != self.anchors.shape:
            raise InvalidInputError(
                f"anchors must be {tuple(self.anchors.shape)}, got {tuple(anchors.shape)}"
            )
        self.anchors.copy_(anchors)
        self.project()

    @torch.no_grad()
    def project(self) -> None:
        """Project the anchor points to the unit sphere."""
        self.anchors.copy_(F.normalize(self.anchors, dim=1))

    def kappa(self, cosines: Tensor) -> Tensor:
        """κ(u) = exp(α(u − 1))."""
        return torch.exp(self.alpha * (cosines - 1))

    def whitener(self) -> Tensor:
        """(κ(ZᵀZ) + εI)^(−1/2), computed in double precision."""
        anchors = self.anchors.double()
        gram = self.kappa(anchors @ anchors.mT)
        noise = self.epsilon * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        return inverse_root(gram + noise).to(self.anchors.dtype)

    def features(self, vectors: Tensor) -> Tensor:
        """ψ of patches ``(N, C·size², places)``: ``(N, filters, places)``."""
        norms = (vectors.square().sum(1, keepdim=True) + NO_NORM).sqrt()
        cosines = self.anchors @ (vectors / norms)
        return norms * (self.whitener() @ self.kappa(cosines))

    def forward(self, maps: Tensor) -> Tensor:
        channels = self.anchors.shape[1] // self.size**2
        if maps.ndim != 4 or maps.shape[1] != channels:
            raise InvalidInputError(
                f"this layer takes maps (N, {channels}, height, width), got {tuple(maps.shape)}"
            )
        features = self.features(patches(maps, self.size))
        return pool(features.unflatten(2, tuple(maps.shape[2:])), self.subsampling)


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
    the vector whose cosine to its nearest anchor is smallest.

    Args:
        vectors: ``(n, d)``, of any norm; zero vectors have no direction and are left out.
        count: number of anchors.
        generator: of the random choice, on the CPU.
        stop: called before every iteration but the first; ends the search when it returns True.
    """
    bad = int((~vectors.isfinite()).sum())
    if bad:
        raise InvalidInputError(f"k-means was given patches with {bad} values that are not finite")
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

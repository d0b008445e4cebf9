r"""Convolutional Gaussian processes with inducing patches, on GPyTorch.

A function g of patches has a Gaussian process prior with kernel k. A *top* sums its responses over
the P patches of an image (van der Wilk et al., 2017),

.. math:: f(x) = \frac1P \sum_p w_p\, g(x^{[p]}), \qquad
          k_f(x, x') = \frac1{P^2} \sum_{p, p'} w_p w_{p'}\, k(x^{[p]}, x'^{[p']}),

a *hidden* layer keeps them as the pixels of a new image (Blomqvist et al., 2018). The kernel k may
also compare where patches are (Dutordoir et al., 2020). In all of them the
inducing variables are values of g at inducing patches Z, so that no pair of images is looked at:

.. math:: k_{fu}(x, z) = \frac1P \sum_p w_p\, k(x^{[p]}, z), \qquad K_{uu} = k(Z, Z).

With :math:`K_{uu} = L L^⊤`, :math:`q(L^{-1}u) = N(m, S)` and :math:`a(x) = L^{-1} k_{uf}(x)`,

.. math:: q(f(x)) = N\big(a^⊤m,\; k_f(x, x) - a^⊤a + a^⊤ S a\big).

This module needs GPyTorch, the extra ``convdkm[gp]``; :mod:`convdkm.lab.baselines.gp` imports it
when it is used.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from convdkm import numerics
from convdkm.errors import InvalidInputError
from convdkm.training.batches import generator_of

if TYPE_CHECKING:
    from convdkm.lab.baselines.gp import ConvolutionalGP

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", ".*torch.jit.script. is deprecated", DeprecationWarning)
    from gpytorch import settings
    from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
    from gpytorch.variational import CholeskyVariationalDistribution

JITTER = {torch.float32: 1e-4, torch.float64: 1e-8}
"""Noise added to the inducing variables, relative to their variance."""
LOOKED_AT = 256
"""Images that a layer's first inducing patches are taken from."""
HIDDEN_DEVIATION, TOP_DEVIATION = 0.1, 0.3
"""Standard deviations that whitened inducing variables start with."""
HIDDEN_VARIANCE, TOP_VARIANCE = 0.1, 10.0
"""Prior variances that layers start with, about; the mean of hidden ones has variance one."""


def patches(maps: Tensor, size: int, stride: int, *, located: bool = False) -> Tensor:
    """Patches inside maps ``(N, C, H, W)``, as ``(N, P, C·size²)``.

    With ``located`` the row and the column of each follow, in pixels: ``(N, P, C·size² + 2)``.
    """
    found = F.unfold(maps, size, stride=stride).mT
    if not located:
        return found
    sides = (torch.arange(count) for count in grid(maps.shape[2:], size, stride))
    where = stride * torch.cartesian_prod(*sides).to(maps)
    return torch.cat([found, where.expand(len(maps), -1, -1)], 2)


def grid(
    sides: Sequence[int], size: int, stride: int, option: str = "patch size"
) -> tuple[int, int]:
    """How many patches there are along each side of an image.

    An error if none fits, which names the ``option`` to make smaller.
    """
    height, width = sides
    if size > min(sides):
        raise InvalidInputError(
            f"patches of {size}×{size} do not fit into images of {height}×{width}; use a smaller"
            f" {option}"
        )
    return (height - size) // stride + 1, (width - size) // stride + 1


class ConvolutionalKernel(nn.Module):
    """The kernel k_f of images; learns the weights w and the kernel of patches.

    Args:
        base: the kernel k of patches.
        sides: height and width of the images.
        size, stride: of the patches.
        located: whether patches, those of ``base`` too, end with where they are.
    """

    def __init__(
        self,
        base: Kernel,
        sides: Sequence[int],
        size: int,
        stride: int = 1,
        *,
        located: bool = False,
    ) -> None:
        super().__init__()
        self.base: Any = base
        self.patches = partial(patches, size=size, stride=stride, located=located)
        self.weights = nn.Parameter(torch.ones(math.prod(grid(sides, size, stride))))

    def variance(self, maps: Tensor) -> Tensor:
        """k_f of every image with itself, ``(N,)``."""
        weights, found = self.weights / len(self.weights), self.patches(maps)
        return (self.base(found, found).to_dense() @ weights) @ weights

    def across(self, inducing: Tensor, maps: Tensor) -> Tensor:
        """k_uf of inducing patches ``(M, C·size²)`` and images: ``(M, N)``."""
        found = self.patches(maps)
        pairs = self.base(inducing, found.flatten(0, 1)).to_dense()
        return pairs.unflatten(1, found.shape[:2]) @ (self.weights / len(self.weights))


class Inducing(nn.Module):
    """Inducing patches, and q of ``outputs`` functions that share them and their kernel.

    S may have two diagonal blocks instead of one. Since L is triangular, the second is then about
    the part of g that the first patches leave open: these are the orthogonal inducing points of Shi
    et al. (2020), which cost less than a full S of the same size.

    Args:
        start: the patches to begin with, ``(M, C·size²)``.
        orthogonal: how many of the M are in the second block.
        deviation: standard deviation of every whitened inducing variable to begin with.
    """

    def __init__(
        self, start: Tensor, outputs: int, orthogonal: int = 0, *, deviation: float = 1.0
    ) -> None:
        super().__init__()
        self.patches = nn.Parameter(start.clone())
        sizes = [len(start) - orthogonal] + [orthogonal] * (orthogonal > 0)
        blocks = [CholeskyVariationalDistribution(m, torch.Size([outputs])) for m in sizes]
        for block in blocks:
            block.chol_variational_covar.data.mul_(deviation)
        self.blocks: Any = nn.ModuleList(blocks)

    @property
    def unused(self) -> int:
        """How many parameters do nothing: those above the diagonals of factors of S."""
        shapes = [block.chol_variational_covar.shape for block in self.blocks]
        return sum(outputs * size * (size - 1) // 2 for outputs, size, _ in shapes)

    def kl(self) -> Tensor:
        """KL divergence of q from the prior, summed over the functions."""
        total = torch.zeros(()).to(self.patches)
        for block in self.blocks:
            factor, mean = block.chol_variational_covar.tril(), block.variational_mean
            total = total + numerics.whitened_kl(factor, mean, triangular=True).sum()
        return total

    def whitener(self, base: Kernel) -> Tensor:
        """L⁻¹, found in double precision."""
        inducing = self.patches.double()
        matrix = base(inducing, inducing).to_dense()
        noise = JITTER[self.patches.dtype] * matrix.diagonal().mean()
        noisy = matrix + noise * torch.eye(len(matrix)).to(matrix)
        return numerics.factorised(noisy, "the kernel of the inducing patches")[1]

    def marginals(self, base: Kernel, across: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance ``(outputs, n)``, from k_uf ``(M, n)`` and prior variances ``(n,)``."""
        a = self.whitener(base).to(across.dtype) @ across
        mean, variance = torch.zeros_like(prior), prior - a.square().sum(0)
        sizes = [block.variational_mean.shape[1] for block in self.blocks]
        for block, part in zip(self.blocks, a.split(sizes), strict=True):
            mean = mean + block.variational_mean @ part
            rest = block.chol_variational_covar.tril().mT @ part
            variance = variance + rest.square().sum(1)
        return mean, variance.clamp(min=settings.min_variance.value(variance.dtype))


class Hidden(nn.Module):
    """A new image, whose channels are functions of the patches.

    The prior mean is a fixed linear map of the patch. A sample draws every pixel from its marginal:
    pixels are then independent given q, which is an approximation that doubly stochastic inference
    makes for images.

    Args:
        base: the kernel k of patches.
        inducing: with one function for each new channel.
        mean: the linear map, ``(channels, C·size²)``.
        centre: what is subtracted from patches before, ``(C·size²,)``.
        size, stride: of the patches.
    """

    def __init__(
        self,
        base: Kernel,
        inducing: Inducing,
        mean: Tensor,
        centre: Tensor,
        *,
        size: int,
        stride: int,
    ) -> None:
        super().__init__()
        self.base, self.inducing, self.size, self.stride = base, inducing, size, stride
        self.mean, self.centre = nn.Buffer(mean), nn.Buffer(centre)

    def moments(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of every new pixel, ``(N, channels, H', W')``."""
        found = patches(maps, self.size, self.stride)
        points = found.flatten(0, 1)
        across = self.base(self.inducing.patches, points).to_dense()
        mean, variance = self.inducing.marginals(self.base, across, self.base(points, diag=True))
        mean = mean + self.mean @ (points - self.centre).mT
        shape = (len(mean), len(maps), *grid(maps.shape[2:], self.size, self.stride))
        return mean.reshape(shape).transpose(0, 1), variance.reshape(shape).transpose(0, 1)

    def forward(self, maps: Tensor) -> Tensor:
        """A sample."""
        mean, variance = self.moments(maps)
        return mean + variance.sqrt() * torch.randn_like(mean)


class DeepConvolutionalGP(nn.Module):
    """Hidden layers, none or more, and a top of functions of images, as sums over patches."""

    def __init__(
        self, hidden: Sequence[Hidden], kernel: ConvolutionalKernel, inducing: Inducing
    ) -> None:
        super().__init__()
        self.hidden, self.kernel, self.inducing = nn.Sequential(*hidden), kernel, inducing
        self._inducing = [*(layer.inducing for layer in hidden), inducing]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of q(f), ``(outputs, N)``, given a sample of the hidden layers."""
        maps = self.hidden(images)
        across, prior = self.kernel.across(self.inducing.patches, maps), self.kernel.variance(maps)
        return self.inducing.marginals(self.kernel.base, across, prior)

    def samples(self, images: Tensor, count: int) -> Tensor:
        """Samples of the functions of every image from q(f), ``(count, N, outputs)``."""
        mean, variance = self(images)
        noise = torch.randn(count, *mean.shape, dtype=mean.dtype, device=mean.device)
        return (mean + variance.sqrt() * noise).mT

    def kl(self) -> Tensor:
        """KL divergence of all layers."""
        return torch.stack([inducing.kl() for inducing in self._inducing]).sum()

    @property
    def learned(self) -> int:
        """How many parameters are learned."""
        return sum(p.numel() for p in self.parameters()) - sum(i.unused for i in self._inducing)


def bound(
    model: DeepConvolutionalGP, images: Tensor, labels: Tensor, num_data: int, samples: int
) -> Tensor:
    """The evidence lower bound for an image: E_q[log softmax(f)_y] − KL/num_data, by samples."""
    logits = model.samples(images, samples)
    expected = -F.cross_entropy(logits.flatten(0, 1), labels.repeat(samples))
    return expected - model.kl() / num_data


def scaled_rbf(points: Tensor, *, located: bool = False) -> Kernel:
    """A squared-exponential kernel of patches whose length is the median distance of ``points``.

    Located patches end with row and column, for which there is a second factor, as long at first as
    the image is: the translation-insensitive kernel of Dutordoir et al. (2020).
    """
    width = points.shape[1] - 2 * located
    inner = RBFKernel(active_dims=tuple(range(width)))
    distances = torch.pdist(points[:1000, :width])
    lengthscale = distances.median() if len(distances) else points.norm()
    inner.lengthscale = lengthscale.clamp(min=1e-3)
    if located:
        near = RBFKernel(active_dims=(width, width + 1))
        near.lengthscale = points[:, width:].max().clamp(min=1.0)
        inner = inner * near
    base = ScaleKernel(inner).to(points.dtype)
    base.outputscale = 1.0
    return base


@torch.no_grad()
def initial_model(options: ConvolutionalGP, images: Tensor, classes: int) -> DeepConvolutionalGP:
    """A model whose layers are set one after the other, from the mean of the one before."""
    seed = options.config.training.seed
    order = torch.randperm(len(images), generator=generator_of(seed, 2))[:LOOKED_AT]
    maps = images[order.to(images.device)]
    hidden = []
    for index in range(options.hidden):
        hidden.append(_initial_hidden(options, maps, generator_of(seed, 7, index)))
        maps = hidden[-1].moments(maps)[0]
    located, stride = options.located, options.stride_for(*maps.shape[2:])
    points = patches(maps, options.size, stride, located=located).flatten(0, 1)
    start = distinct_rows(points, options.inducing + options.orthogonal, generator_of(seed, 8))
    base = scaled_rbf(start, located=located)
    kernel = ConvolutionalKernel(base, maps.shape[2:], options.size, stride, located=located)
    base.outputscale = TOP_VARIANCE / kernel.variance(maps[:32]).mean()
    inducing = Inducing(start, classes, options.orthogonal, deviation=TOP_DEVIATION)
    return DeepConvolutionalGP(hidden, kernel, inducing)


def _initial_hidden(options: ConvolutionalGP, maps: Tensor, generator: torch.Generator) -> Hidden:
    """A layer with inducing patches from maps, and a prior mean to their principal components."""
    size, stride, channels = options.hidden_size, options.hidden_stride, options.channels
    points = patches(maps, size, stride).flatten(0, 1)
    if channels > points.shape[1]:
        raise InvalidInputError(
            f"patches of {points.shape[1]} numbers have no {channels} principal components; use"
            f" {points.shape[1]} channels or fewer, or a larger hidden_size"
        )
    start = distinct_rows(points, options.inducing, generator)
    base, inducing = scaled_rbf(start), Inducing(start, channels, deviation=HIDDEN_DEVIATION)
    base.outputscale = HIDDEN_VARIANCE
    return Hidden(base, inducing, *principal_components(points, channels), size=size, stride=stride)


def distinct_rows(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Different rows, chosen at random."""
    some = rows[torch.randperm(len(rows), generator=generator)[: 20 * count].to(rows.device)]
    some = some.unique(dim=0)
    if len(some) < count:
        raise InvalidInputError(
            f"{count} inducing patches need as many different patches, and {len(some)} were found"
            " in the images; use fewer inducing patches, or more images"
        )
    return some[torch.randperm(len(some), generator=generator)[:count].to(rows.device)]


def principal_components(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """A map ``(count, d)`` to the largest principal components, of variance one; and the mean.

    Components without variance are mapped to zero.
    """
    centre = rows.mean(0)
    centred = (rows - centre).double()
    values, vectors = torch.linalg.eigh(centred.mT @ centred / len(rows))
    values, vectors = values[-count:], vectors[:, -count:]
    scale = torch.where(values > 1e-8 * values.max(), values.clamp(min=1e-300).rsqrt(), 0.0)
    return (vectors * scale).mT.to(rows), centre

r"""Instruments: a few numbers for every layer that tell whether a machine can learn, and does.

They are cheap enough to be read in training: see :func:`readings` and :func:`gradient_ratios`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from convdkm.errors import NotFiniteError
from convdkm.insight.walk import Place, first_blocks, gram_leaves, taken_apart
from convdkm.layers import GramLayer
from convdkm.model import DeepKernelMachine
from convdkm.ops.base import Blocks
from convdkm.ops.gram import GramPlan

AT_A_TIME = 16
"""Images whose blocks are held in float64."""


@dataclass(frozen=True)
class Reading:
    r"""What the instruments say of a Gram layer.

    Attributes:
        kl: :math:`D_{KL}(N(0,G_{ii})\|N(0,K_{ii}))` in nats; None where ν is infinite and G = K.
        scale_kl, shape_kl: its two parts; see :func:`scale_part`.
        explained: share of the variance of data that the inducing points explain,
            :math:`1 - (k_{tt} - K_{ti}K_{ii}^{-1}K_{it})/k_{tt}`, the mean over places t of images;
            None without images, and where no place has a variance.
        spread: how much correlations with inducing points differ from image to image. With
            :math:`\rho_{i,ps} = G_{i,ps}/\sqrt{G_{ii}G_{ps,ps}}` between inducing point i and place
            s of image p (0 where one of them has no variance), it is
            :math:`\sqrt{\operatorname{mean}_{i,s}\operatorname{var}_p\,\rho_{i,ps}}`; None without
            images.
    """

    kl: float | None
    scale_kl: float | None
    shape_kl: float | None
    explained: float | None
    spread: float | None


def readings(model: DeepKernelMachine, batches: Iterable[Tensor] = ()) -> dict[str, Reading]:
    r"""Read the instruments of every Gram layer, and those of the Gram that the head sees.

    They are by the names in ``model.named_modules()``; the last is ``head``, which has no KL here.

    For a small correlation ρ the arc-cosine kernel of order 1 is
    :math:`\tfrac1\pi + \tfrac\rho2 + \tfrac{\rho^2}{2\pi}` times the deviations: where the spread
    of correlations is small, every layer is linear, and so is the machine.

    Args:
        model: the machine, trained or initialised; in evaluation, and left as it was.
        batches: batches of (whitened) images or vectors, such as ``images[:128].split(32)``;
            without them there are only the divergences.
    """
    with taken_apart(model) as root:
        meters = {leaf: Meter(_whitening(leaf), leaf.ii) for leaf in gram_leaves(root)}

        def visit(place: Place, incoming: Blocks, outgoing: Blocks) -> None:
            if place in meters:
                meters[place].see(incoming, outgoing)

        top = Meter(whitening_of(root.ii), root.ii)
        for batch in batches:
            last = root.data(first_blocks(model, batch), visit)
            top.see(last, last)
    found = {leaf.name: _reading(leaf, meter) for leaf, meter in meters.items()}
    return found | {"head": Reading(None, None, None, top.explained, top.spread)}


def gradient_ratios(model: nn.Module) -> dict[str, float]:
    r"""How large the gradient of every layer is, beside the layer's parameters.

    .. math:: \frac{\|\partial\mathcal L/\partial\theta\|}{\|\theta\|}

    over the parameters θ that a layer itself holds, by its name in ``model.named_modules()``, from
    the gradients that ``backward`` has left with them. Layers that have no gradients, or whose
    parameters are all zero, are left out.
    """
    ratios = {}
    for name, module in model.named_modules():
        trained = [p for p in module.parameters(recurse=False) if p.grad is not None]
        size = _norm(p.detach() for p in trained)
        if size > 0:
            ratios[name] = _norm(p.grad for p in trained if p.grad is not None) / size
    return ratios


def scale_part(stretches: Tensor, *, taylor: bool = False) -> float:
    r"""The part of a KL that a change of overall scale costs; the rest is that of the shape.

    The rest is the least KL that a multiple of :math:`G_{ii}` has, so that neither is negative.
    With ``stretches`` :math:`s_j`, the eigenvalues of :math:`K_{ii}^{-1}G_{ii}`, and s their mean,
    the scale costs :math:`\tfrac12P_i(s - 1 - \log s)`. Of the KL to second order (``taylor``) in
    :math:`\mu_j = 1/s_j`, the shape costs
    :math:`\tfrac14(P_i - (\sum_j\mu_j)^2/\sum_j\mu_j^2)`.
    """
    if taylor:
        inverse = stretches.reciprocal()
        total = 0.25 * (inverse - 1).square().sum()
        scale = total - 0.25 * (len(inverse) - inverse.sum().square() / inverse.square().sum())
    else:
        mean = stretches.mean()
        scale = 0.5 * len(stretches) * (mean - 1 - mean.log())
    return max(float(scale), 0.0)


class Meter:
    r"""Measures the blocks that enter and leave a Gram layer, batch after batch.

    Args:
        whitening: W with :math:`W^TW = K_{ii}^{-1}`, of the kernel that enters.
        ii: :math:`G_{ii}`, of the Gram that leaves.
    """

    def __init__(self, whitening: Tensor, ii: Tensor) -> None:
        self._whitening, self._deviation = whitening, ii.diagonal().clamp(min=0).sqrt()
        self._share, self._places, self._images = 0.0, 0, 0
        self._shift = self._sum = self._squares = torch.zeros((), dtype=ii.dtype)

    def see(self, incoming: Blocks, outgoing: Blocks) -> None:
        """Take the data blocks of some images into account."""
        parts = (block.split(AT_A_TIME) for block in (*incoming, *outgoing))
        for k_it, k_tt, g_it, g_tt in zip(*parts, strict=True):
            self._see_kernel(k_it.double(), k_tt.double())
            self._see_gram(g_it.double(), g_tt.double())

    @property
    def explained(self) -> float | None:
        """See :attr:`Reading.explained`."""
        return self._share / self._places if self._places else None

    @property
    def spread(self) -> float | None:
        """See :attr:`Reading.spread`."""
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
        if not self._images:  # subtracting the first images' mean avoids cancellation
            self._shift = correlation.mean(0)
        shifted = correlation - self._shift
        self._sum = self._sum + shifted.sum(0)
        self._squares = self._squares + shifted.square().sum(0)
        self._images += len(shifted)


def whitening_of(matrix: Tensor) -> Tensor:
    """W with WᵀW = matrix⁻¹; directions that rounding alone has made are left out."""
    finite = torch.isfinite(matrix)
    if not bool(finite.all()):
        bad = int((~finite).sum())
        raise NotFiniteError("the kernel matrix K_ii", matrix.dtype, len(matrix), bad)
    values, vectors = torch.linalg.eigh(matrix)
    floor = values[-1].clamp(min=0) * len(values) * torch.finfo(values.dtype).eps
    inverse = torch.where(values > floor, values.clamp(min=1e-300).rsqrt(), 0.0)
    return inverse[:, None] * vectors.T


def _whitening(leaf: Place) -> Tensor:
    """The whitening of the layer's plan, or one made for a layer that needs none."""
    plan = leaf.plan
    if isinstance(plan, GramPlan) and plan.whitening is not None:
        return plan.whitening
    return whitening_of(leaf.incoming)


def _reading(leaf: Place, meter: Meter) -> Reading:
    kl = scale = shape = None
    if isinstance(leaf.plan, GramPlan) and isinstance(leaf.layer, GramLayer):
        kl = leaf.kl
        # The columns after the first P_i are those of the noise, which is not part of the KL.
        spread = leaf.plan.spread[:, : len(leaf.ii)]
        stretches = torch.linalg.svdvals(spread).square()
        scale = min(scale_part(stretches, taylor=leaf.layer.kl == "taylor"), kl)
        shape = max(kl - scale, 0.0)
    return Reading(kl, scale, shape, meter.explained, meter.spread)


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(tensor)) for tensor in tensors))

r"""Instruments: a few numbers for every layer that tell whether a machine can learn, and does.

They are cheap enough to be read in training: see :func:`readings` and :func:`gradient_ratios`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from convdkm.insight.meter import Meter, whitening_of
from convdkm.insight.walk import Place, first_blocks, gram_leaves, taken_apart
from convdkm.model import DeepKernelMachine
from convdkm.ops.base import Blocks
from convdkm.ops.gram import GramPlan


@dataclass(frozen=True)
class Reading:
    r"""What the instruments say of a Gram layer.

    Attributes:
        kl: :math:`D_{KL}(N(0,G_{ii})\|N(0,K_{ii}))` in nats; None where ν is infinite and G = K.
        scale_kl, shape_kl: its two parts; see :func:`scale_part`.
        explained: share of the variance of data that the inducing points explain; see
            :attr:`Meter.explained <convdkm.insight.meter.Meter.explained>`. None without images.
        spread: how much correlations with inducing points differ from image to image; see
            :attr:`Meter.spread <convdkm.insight.meter.Meter.spread>`. None without images.
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


def scale_part(mean_stretch: float, num_inducing: int) -> float:
    r"""The part of a KL that a change of overall scale costs.

    With :math:`t = \mathrm{tr}\,K_{ii}^{-1}G_{ii}`, ``mean_stretch`` being :math:`t/P_i`, the KL is
    :math:`\tfrac12(t - P_i - P_i\log\tfrac{t}{P_i})` for the scale plus
    :math:`\tfrac12(P_i\log\tfrac{t}{P_i} - \log|K_{ii}^{-1}G_{ii}|)` for the shape, both not
    negative; the second is the KL of :math:`\tfrac{P_i}{t}G_{ii}`, the closest multiple.
    """
    logarithm = math.log(mean_stretch) if mean_stretch > 0 else -math.inf
    return max(0.5 * num_inducing * (mean_stretch - 1 - logarithm), 0.0)


def _whitening(leaf: Place) -> Tensor:
    """The whitening of the layer's plan, or one made for a layer that needs none."""
    plan = leaf.plan
    if isinstance(plan, GramPlan) and plan.whitening is not None:
        return plan.whitening
    return whitening_of(leaf.incoming)


def _reading(leaf: Place, meter: Meter) -> Reading:
    kl = scale = shape = None
    if isinstance(leaf.plan, GramPlan):
        kl = leaf.kl
        stretch = float(leaf.plan.spread.square().sum()) / len(leaf.ii)
        scale = min(scale_part(stretch, len(leaf.ii)), kl)
        shape = max(kl - scale, 0.0)
    return Reading(kl, scale, shape, meter.explained, meter.spread)


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(tensor)) for tensor in tensors))

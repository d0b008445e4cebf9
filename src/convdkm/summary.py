"""A machine layer by layer: inducing points, space, parameters, KL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from convdkm.gram import Gram
from convdkm.layers.base import Layer
from convdkm.layers.compose import Sequential, Skip
from convdkm.model import DeepKernelMachine, in_mode


@dataclass(frozen=True)
class LayerSummary:
    """One row: what a layer is, and the Gram that leaves it.

    Attributes:
        name: as in ``model.named_modules()``.
        kind: the layer's class.
        inducing: P_i of the outgoing Gram; 0 where there is none.
        space: places of the outgoing Gram.
        parameters: numbers that are learned.
        nu: weight of the layer's KL, for a Gram layer.
        kl: the layer's divergence in nats.
    """

    name: str
    kind: str
    inducing: int
    space: tuple[int, ...]
    parameters: int
    nu: float | None = None
    kl: float | None = None


@torch.no_grad()
def summarise(model: DeepKernelMachine, image_shape: Sequence[int]) -> list[LayerSummary]:
    """Every layer of a machine for images ``(channels, *space)``, in the order of the data."""
    with in_mode(model, training=False):
        images = torch.randn(1, *image_shape, generator=torch.Generator().manual_seed(0))
        gram = model.input(images.to(model.device, model.dtype))
        first = LayerSummary("input", type(model.input).__name__, *_of(gram), _count(model.input))
        rows = [first, *(row for row, _ in _walk("body", model.body, gram))]
        head_kl = float(model.head.plan(model.body.plan(gram.ii).ii).kl.sum())
    head, likelihood = model.head, model.likelihood
    rows.append(LayerSummary("head", type(head).__name__, 0, (), _count(head), nu=1.0, kl=head_kl))
    rows.append(LayerSummary("likelihood", type(likelihood).__name__, 0, (), _count(likelihood)))
    return rows


def _walk(name: str, layer: Layer, gram: Gram) -> Iterator[tuple[LayerSummary, Gram]]:
    """Rows of a layer and of all inside it; the last one's Gram is what leaves the layer."""
    if isinstance(layer, Sequential) and len(layer):
        for part, child in layer.named_layers():
            for row, outgoing in _walk(f"{name}.{part}", child, gram):
                yield row, outgoing
            gram = outgoing
        return
    if isinstance(layer, Skip):
        yield from _walk(f"{name}.body", layer.body, gram)
        if layer.shortcut is not None:
            yield from _walk(f"{name}.shortcut", layer.shortcut, gram)
    outgoing = layer(gram)
    own = layer.plan(gram.ii).kl.get("") if not isinstance(layer, Skip) else None
    inside = isinstance(layer, Skip)
    row = LayerSummary(
        name,
        type(layer).__name__,
        *_of(outgoing),
        sum(p.numel() for p in layer.parameters(recurse=not inside)),
        None if own is None else own.nu,
        None if own is None else float(own.value),
    )
    yield row, outgoing


def _of(gram: Gram) -> tuple[int, tuple[int, ...]]:
    return gram.ii.shape[0], tuple(gram.it.shape[2:])


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())

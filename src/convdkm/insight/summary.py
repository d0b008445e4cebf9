"""A machine layer by layer: inducing points, space, parameters, KL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from convdkm.gram import Gram
from convdkm.layers.base import Layer
from convdkm.layers.compose import Sequential, Skip
from convdkm.layers.gram_layer import GramLayer
from convdkm.model import DeepKernelMachine, in_mode


@dataclass(frozen=True)
class LayerSummary:
    """One row: what a layer is, and the Gram that leaves it.

    Attributes:
        name: as in ``model.named_modules()``.
        block: the name of the part of the machine that it belongs to, such as ``stage1.block2``;
            empty for one that stands alone.
        part: its name within that block, such as ``first.conv``.
        kind: the layer's class.
        inducing: P_i of the outgoing Gram; 0 where there is none.
        space: places of the outgoing Gram.
        parameters: numbers that are learned.
        nu: weight of the layer's KL, for a Gram layer.
        kl: the layer's divergence in nats.
    """

    name: str
    block: str
    part: str
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
        rows = [_alone("input", model.input, *_of(gram))]
        rows += [row for row, _ in _walk(_Place("body"), model.body, gram)]
        head_kl = float(model.head.plan(model.body.plan(gram.ii).ii).kl.sum())
    rows.append(replace(_alone("head", model.head), nu=1.0, kl=head_kl))
    rows.append(_alone("likelihood", model.likelihood))
    return rows


@dataclass(frozen=True)
class _Place:
    """Where a layer stands: its full name, its block, and its name in there."""

    name: str
    block: str = ""
    part: str = ""

    def child(self, name: str, *, of_skip: bool = False) -> _Place:
        """A layer inside; the body of a skip has no name of its own in the block."""
        full = f"{self.name}.{name}"
        if of_skip:
            return _Place(full, self.inner, "" if name == "body" else name)
        return _Place(full, self.block, f"{self.part}.{name}" if self.part else name)

    @property
    def inner(self) -> str:
        """The block that the layers inside belong to, where this layer makes one."""
        return f"{self.block}.{self.part}" if self.block and self.part else self.block or self.part


def _walk(place: _Place, layer: Layer, gram: Gram) -> Iterator[tuple[LayerSummary, Gram]]:
    """Rows of a layer and of all inside it; the last one's Gram is what leaves the layer."""
    if isinstance(layer, Sequential) and len(layer):
        if not place.block and place.part and not _holds_skips(layer):
            place = _Place(place.name, place.part)
        for name, child in layer.named_layers():
            for row, outgoing in _walk(place.child(name), child, gram):
                yield row, outgoing
            gram = outgoing
        return
    inside = isinstance(layer, Skip)
    if isinstance(layer, Skip):
        yield from _walk(place.child("body", of_skip=True), layer.body, gram)
        if layer.shortcut is not None:
            yield from _walk(place.child("shortcut", of_skip=True), layer.shortcut, gram)
    outgoing = layer(gram)
    nu = layer.nu if isinstance(layer, GramLayer) else None
    kl = None if nu is None else sum(float(k.value) for k in layer.plan(gram.ii).kl.values())
    row = LayerSummary(
        place.name,
        place.inner if inside else place.block,
        "skip" if inside else place.part,
        type(layer).__name__,
        *_of(outgoing),
        sum(p.numel() for p in layer.parameters(recurse=not inside)),
        nu,
        kl,
    )
    yield row, outgoing


def _holds_skips(layer: Layer) -> bool:
    return any(isinstance(module, Skip) for module in layer.modules())


def _alone(
    name: str, layer: nn.Module, inducing: int = 0, space: tuple[int, ...] = ()
) -> LayerSummary:
    return LayerSummary(name, "", name, type(layer).__name__, inducing, space, _count(layer))


def _of(gram: Gram) -> tuple[int, tuple[int, ...]]:
    return gram.ii.shape[0], tuple(gram.it.shape[2:])


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())

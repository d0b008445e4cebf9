"""A machine layer by layer: inducing points, space, parameters, KL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from convdkm.insight.walk import Place, first_blocks, taken_apart
from convdkm.layers.compose import Sequential, Skip
from convdkm.layers.gram_layer import GramLayer
from convdkm.model import DeepKernelMachine
from convdkm.ops.base import Blocks

Shape = tuple[int, tuple[int, ...]]
"""Inducing points, and places."""


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
        parameters: count of trainable parameters.
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
    images = torch.randn(1, *image_shape, generator=torch.Generator().manual_seed(0))
    shapes: dict[Place, Shape] = {}

    def see(place: Place, _: Blocks, outgoing: Blocks) -> None:
        shapes[place] = _shape(outgoing)

    with taken_apart(model) as root:
        first = first_blocks(model, images)
        root.data(first, see)
        rows = [_alone("input", model.input, *_shape(first)), *_rows(root, "", "", shapes)]
        head_kl = float(model.head.plan(root.ii).kl.sum())
    rows.append(replace(_alone("head", model.head), nu=1.0, kl=head_kl))
    rows.append(_alone("likelihood", model.likelihood))
    return rows


def _rows(
    place: Place, block: str, part: str, shapes: Mapping[Place, Shape]
) -> Iterator[LayerSummary]:
    """Rows of a layer and of all inside it, which come first.

    A skip is a block, and so is a sequence outside of blocks that holds no skips.
    """
    layer, inside, skips = place.layer, place.inside, isinstance(place.layer, Skip)
    holds_skips = any(isinstance(module, Skip) for module in layer.modules())
    if skips:
        block, part = _dotted(block, part), ""
    elif isinstance(layer, Sequential) and not block and not holds_skips:
        block, part = part, ""
    for inner in inside:
        name = inner.name.removeprefix(f"{place.name}.")
        name = "" if skips and name == "body" else name
        yield from _rows(inner, block, _dotted(part, name), shapes)
    if inside and not skips:
        return
    nu = layer.nu if isinstance(layer, GramLayer) else None
    yield LayerSummary(
        place.name,
        block,
        "skip" if skips else part,
        type(layer).__name__,
        *shapes[place],
        sum(p.numel() for p in layer.parameters(recurse=not skips)),
        nu,
        None if nu is None else place.kl,
    )


def _dotted(*names: str) -> str:
    return ".".join(filter(None, names))


def _alone(
    name: str, layer: nn.Module, inducing: int = 0, space: tuple[int, ...] = ()
) -> LayerSummary:
    parameters = sum(p.numel() for p in layer.parameters())
    return LayerSummary(name, "", name, type(layer).__name__, inducing, space, parameters)


def _shape(blocks: Blocks) -> Shape:
    return blocks[0].shape[1], tuple(blocks[0].shape[2:])

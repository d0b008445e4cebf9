"""A machine taken apart: every layer with the Gram that enters and the Gram that leaves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from convdkm.layers.base import Layer
from convdkm.layers.compose import Sequential, Skip
from convdkm.layers.gram_layer import GramLayer
from convdkm.layers.samples import cast_samples
from convdkm.model import DeepKernelMachine, in_mode
from convdkm.ops.base import Plan
from convdkm.runtime.compilable import compilable
from convdkm.runtime.maps import channels_last

Blocks = tuple[Tensor, Tensor]
Visit = Callable[["Leaf", Blocks, Blocks], None]


@dataclass(frozen=True, eq=False)
class Node:
    """A part of the machine whose inducing chain is worked out; ``ii`` leaves it."""

    ii: Tensor

    def leaves(self) -> list[Leaf]:
        """The layers inside that hold no others, in the order of the data."""
        raise NotImplementedError

    def data(self, blocks: Blocks, visit: Visit) -> Blocks:
        """The data blocks that leave it; ``visit`` sees what enters and leaves every leaf."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Leaf(Node):
    """A layer, under its name in ``model.named_modules()``; ``incoming`` is the ii that enters."""

    name: str
    layer: Layer
    incoming: Tensor
    plan: Plan

    def leaves(self) -> list[Leaf]:
        return [self]

    def data(self, blocks: Blocks, visit: Visit) -> Blocks:
        outgoing = self.plan.data(*blocks)
        visit(self, blocks, outgoing)
        return outgoing


@dataclass(frozen=True, eq=False)
class _Line(Node):
    parts: list[Node]

    def leaves(self) -> list[Leaf]:
        return [leaf for part in self.parts for leaf in part.leaves()]

    def data(self, blocks: Blocks, visit: Visit) -> Blocks:
        for part in self.parts:
            blocks = part.data(blocks, visit)
        return blocks


@dataclass(frozen=True, eq=False)
class _Fork(Node):
    body: Node
    shortcut: Node | None
    weight: float

    def leaves(self) -> list[Leaf]:
        return self.body.leaves() + ([] if self.shortcut is None else self.shortcut.leaves())

    def data(self, blocks: Blocks, visit: Visit) -> Blocks:
        body = self.body.data(blocks, visit)
        short = blocks if self.shortcut is None else self.shortcut.data(blocks, visit)
        it, tt = (torch.lerp(s, b, self.weight) for s, b in zip(short, body, strict=True))
        return it, tt


@contextmanager
def taken_apart(model: DeepKernelMachine) -> Iterator[Node]:
    """The body of a machine in evaluation, layer by layer; the machine is left as it was.

    No layer is merged with its neighbours, and none of its functions is compiled anew for that.
    """
    compiled = [layer for layer in compilable(model) if layer.compiled]
    with in_mode(model, training=False), torch.no_grad():
        try:
            for layer in compiled:
                layer.compiled = False
            yield planned("body", model.body, model.input.inducing_block())
        finally:
            for layer in compiled:
                layer.compiled = True


def first_blocks(model: DeepKernelMachine, images: Tensor) -> Blocks:
    """The data blocks that enter the body."""
    model.input.check(images)
    return model.input.data(channels_last(cast_samples(images, model.device, model.dtype)))


def gram_leaves(root: Node) -> list[Leaf]:
    """The Gram layers."""
    return [leaf for leaf in root.leaves() if isinstance(leaf.layer, GramLayer)]


def planned(name: str, layer: Layer, ii: Tensor) -> Node:
    """A layer with all layers inside it, each planned for itself."""
    if isinstance(layer, Sequential):
        incoming, parts = ii, []
        for child, inner in layer.named_layers():
            parts.append(planned(f"{name}.{child}", inner, incoming))
            incoming = parts[-1].ii
        return _Line(incoming, parts)
    if isinstance(layer, Skip):
        body = planned(f"{name}.body", layer.body, ii)
        short = layer.shortcut
        other = None if short is None else planned(f"{name}.shortcut", short, ii)
        weight = float(layer.weight)
        passed = ii if other is None else other.ii
        return _Fork(torch.lerp(passed, body.ii, weight), body, other, weight)
    plan = layer.plan(ii)
    return Leaf(plan.ii, name, layer, ii, plan)

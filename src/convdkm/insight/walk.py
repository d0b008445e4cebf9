"""A machine taken apart: every layer with the Gram that enters and the Gram that leaves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from convdkm.layers.base import Layer
from convdkm.layers.compose import Sequential, Skip
from convdkm.layers.gram_layer import GramLayer
from convdkm.layers.samples import cast_samples
from convdkm.model import DeepKernelMachine, in_mode
from convdkm.ops.base import Blocks, Plan
from convdkm.ops.chain import Chain, SkipPlan, apart
from convdkm.runtime.compiled import compilable
from convdkm.runtime.maps import channels_last


@dataclass(frozen=True, eq=False)
class Place:
    """A layer where it stands in the machine; all that walks chains and skips does so by it.

    Attributes:
        name: as in ``model.named_modules()``.
        layer: the layer.
        plan: its operation.
        incoming: the inducing block that enters it.
    """

    name: str
    layer: Layer
    plan: Plan
    incoming: Tensor

    @property
    def ii(self) -> Tensor:
        """The inducing block that leaves it."""
        return self.plan.ii

    @property
    def kl(self) -> float:
        """Its divergence in nats; 0 for a layer that has none."""
        return sum(float(term.value) for term in self.plan.kl.values())

    @cached_property
    def inside(self) -> list[Place]:
        """The layers that it is made of, in the order of the data; none if it is made of none."""
        layer, plan, ii, found = self.layer, self.plan, self.incoming, list[Place]()
        if isinstance(layer, Sequential) and type(plan) is Chain:
            for (name, inner), (_, step) in zip(layer.named_layers(), plan.steps, strict=True):
                found.append(Place(f"{self.name}.{name}", inner, step, ii))
                ii = step.ii
        elif isinstance(layer, Skip) and type(plan) is SkipPlan:
            found.append(Place(f"{self.name}.body", layer.body, plan.body, ii))
            if layer.shortcut is not None:
                found.append(Place(f"{self.name}.shortcut", layer.shortcut, plan.shortcut, ii))
        return found

    def leaves(self) -> list[Place]:
        """The layers inside that hold no others, in the order of the data."""
        if isinstance(self.layer, (Sequential, Skip)):
            return [leaf for place in self.inside for leaf in place.leaves()]
        return [self]

    def data(self, blocks: Blocks, visit: Visit) -> Blocks:
        """The data blocks that leave it; ``visit`` sees what enters and leaves every layer.

        A layer that is made of others is seen after them.
        """
        outgoing, inside = blocks, self.inside
        if isinstance(self.plan, SkipPlan) and inside:
            body, *short = [place.data(blocks, visit) for place in inside]
            outgoing = self.plan.combined(body, *short or [blocks])
        elif inside:
            for place in inside:
                outgoing = place.data(outgoing, visit)
        else:
            outgoing = self.plan.data(*blocks)
        visit(self, blocks, outgoing)
        return outgoing


Visit = Callable[[Place, Blocks, Blocks], None]


@contextmanager
def taken_apart(model: DeepKernelMachine) -> Iterator[Place]:
    """The body of a machine in evaluation, layer by layer; the machine is left as it was.

    No layer is merged with its neighbours, and none of its functions is compiled again for that.
    """
    compiled = [layer for layer in compilable(model) if layer.compiled]
    with in_mode(model, training=False), torch.no_grad():
        try:
            for layer in compiled:
                layer.compiled = False
            ii = model.input.inducing_block()
            with apart():
                plan = model.body.plan(ii)
            yield Place("body", model.body, plan, ii)
        finally:
            for layer in compiled:
                layer.compiled = True


def first_blocks(model: DeepKernelMachine, images: Tensor) -> Blocks:
    """The data blocks that enter the body."""
    model.input.check(images)
    return model.input.data(channels_last(cast_samples(images, model.device, model.dtype)))


def gram_leaves(root: Place) -> list[Place]:
    """The Gram layers."""
    return [leaf for leaf in root.leaves() if isinstance(leaf.layer, GramLayer)]

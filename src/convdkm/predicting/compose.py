"""Steps of a folded machine that are made of steps: one after the other, and side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from convdkm.errors import located
from convdkm.layers.compose import require_same_space
from convdkm.predicting.base import Blocks, FoldedList, known, tracing
from convdkm.predicting.steps import Step


@known
class FoldedChain(Step):
    """Steps one after the other.

    Args:
        steps: the steps.
        names: of the layers that they come from, for errors.
    """

    settings = ("names",)
    steps: FoldedList

    def __init__(self, *, steps: FoldedList, names: tuple[str, ...]) -> None:
        super().__init__()
        self.steps, self.names = steps, names

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        for name, step in zip(self.names, self.steps.children(), strict=True):
            with located(name):
                it, tt = step(it, tt)
        return it, tt


@known
class FoldedSkip(Step):
    """``(1 − w)·short + w·body``.

    Args:
        body, shortcut: the two sides.
        weight: w.
        body_factor, short_factor: what is left to multiply ``it`` by; 1 where the side has taken
            its weight into its own matrices.
    """

    settings = ("weight", "body_factor", "short_factor")
    numbers = settings
    body: Step
    shortcut: Step

    def __init__(
        self,
        *,
        body: Step,
        shortcut: Step,
        weight: float,
        body_factor: float,
        short_factor: float,
    ) -> None:
        super().__init__()
        self.body, self.shortcut, self.weight = body, shortcut, weight
        self.body_factor, self.short_factor = body_factor, short_factor

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        with located("body"):
            body_it, body_tt = self.body(it, tt)
        with located("shortcut"):
            short_it, short_tt = self.shortcut(it, tt)
            require_same_space(it, body_it, short_it)
        if tracing():
            combined = _times(body_it, self.body_factor) + _times(short_it, self.short_factor)
        else:
            combined = torch.add(
                _times(body_it, self.body_factor), short_it, alpha=self.short_factor
            )
        return combined, torch.lerp(short_tt, body_tt, self.weight)


def _times(maps: Tensor, factor: float | Tensor) -> Tensor:
    """Times a number, which in a compiled program is a tensor unless it is 1."""
    return maps * factor if isinstance(factor, Tensor) or factor != 1 else maps

"""A copy in memory of everything that a training step changes."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Snapshot:
    """Parameters, buffers and optimiser state of one moment, to go back to."""

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        self._model, self._optimiser = model, optimiser
        self._values: list[Tensor] | None = None

    def _tensors(self) -> list[Tensor]:
        state = [value for entry in self._optimiser.state.values() for value in entry.values()]
        return [*self._model.parameters(), *self._model.buffers(), *state]

    @torch.no_grad()
    def take(self) -> None:
        """Remember this moment."""
        tensors = self._tensors()
        if self._values is None or len(self._values) != len(tensors):
            self._values = [tensor.detach().clone() for tensor in tensors]
            return
        for copy, tensor in zip(self._values, tensors, strict=True):
            copy.copy_(tensor)

    @torch.no_grad()
    def restore(self) -> None:
        """Go back to the moment remembered; nothing if there is none."""
        if self._values is None:
            return
        tensors = self._tensors()
        if len(tensors) > len(self._values):  # the moment was before the optimiser's first step
            self._optimiser.state.clear()
        for copy, tensor in zip(self._values, tensors, strict=False):
            tensor.copy_(copy)

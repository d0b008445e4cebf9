"""The convolutional network that a user would pick instead: same shape, same recipe."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

from convdkm.config import Recipe
from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.base import Baseline, check_like, check_training_set
from convdkm.lab.baselines.descent import Budget, descend
from convdkm.lab.baselines.machine import recipe_of
from convdkm.lab.bench.cnn import ResNet
from convdkm.options import MachineOptions
from convdkm.training.batches import Batches
from convdkm.training.build import first_draws, products_in
from convdkm.training.cost import line
from convdkm.training.optimiser import Descent, Treatment, by_muon
from convdkm.training.world import find_device
from convdkm.views import Views

LEARNING_RATE = 0.01
"""The paper's; that of the preset ``quick`` is for weights relative to a kernel."""


class CNN(Baseline):
    """A residual network with as many channels as the machine has inducing points.

    Blocks, strides, epochs, batch size, Adam's betas, the schedule, augmentation, precision,
    averages of weights and views at prediction are those of the machine of the same preset. Where
    Muon takes the machine's mixing weights, it takes the network's convolutions. Batch
    normalisation takes the place of the machine's, and where the recipe makes the machine's running
    statistics exact, so it does the network's. Natural steps have no counterpart.

    Args:
        preset: name of the settings.
        dataset: name of the data set, which may have settings of its own in the preset.
        learning_rate: at its peak.
        options: options of :class:`~convdkm.config.RunConfig`; only those of the shape and the
            recipe matter.
    """

    def __init__(
        self,
        preset: str = "quick",
        dataset: str = "images",
        *,
        learning_rate: float = LEARNING_RATE,
        **options: Any,
    ) -> None:
        self.config = recipe_of(preset, dataset, {**options, "learning_rate": learning_rate})
        size = self.config.model.kernel_size
        if size != 3:
            raise InvalidInputError(
                f"the network's convolutions are 3×3, got kernel_size {size}; leave it at 3"
            )
        self.network: nn.Module | None = None
        self._shape: tuple[int, ...] = ()
        self.curve: list[float] = []
        self._steps = 0

    def fit(self, images: Tensor, labels: Tensor) -> CNN:
        classes = check_training_set(images, labels)
        budget = Budget(self.minutes)
        training = self.config.training
        device = find_device(training.device)
        with first_draws(training):
            network = build(self.config.model, images.shape[1], classes).to(device)
        batches = Batches.of(training, images.to(device, torch.float32), labels.long().to(device))

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            with products_in(training.precision, device):
                return F.cross_entropy(network(at_least_two(inputs)), at_least_two(targets))

        network.train()
        self.curve, self._steps = descend(
            optimiser_of(network.parameters(), training, device),
            batches,
            training,
            loss,
            budget=budget,
            tell=self.tell,
        )
        self.cut_short = budget.over()
        if training.calibrate:
            # Running statistics lag behind the weights.
            update_bn(map(at_least_two, batches.clean(training.calibrate)), network)
        self.network, self._shape = network.eval(), tuple(images.shape[1:])
        return self

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        network = self.require_fitted(self.network)
        check_like(images, self._shape)
        device = next(network.parameters()).device
        training = self.config.training
        views = Views(training.views, stage=training.augment)
        seen = (
            network(views.inputs(part.to(device, torch.float32))).unflatten(0, (views.count, -1))
            for part in images.split(training.evaluation_batch)
        )
        logits = torch.cat([each.mean(0) for each in seen])
        return logits.double().log_softmax(1).to(images.device)

    def flops(self, images: Tensor, labels: Tensor) -> float | None:
        network = copy.deepcopy(self.require_fitted(self.network)).train()
        device = next(network.parameters()).device
        optimiser = optimiser_of(network.parameters(), self.config.training, device)
        inputs, targets = images.to(device, torch.float32), labels.long().to(device)

        def step(count: int) -> None:
            chosen = torch.arange(count, device=device) % len(inputs)
            optimiser.zero_grad()
            F.cross_entropy(network(inputs[chosen]), targets[chosen]).backward()
            optimiser.step()

        steps = Batches.of(self.config.training, inputs, targets).steps
        return self._steps * line(step).at(len(inputs) / steps)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.require_fitted(self.network).parameters())


def optimiser_of(parameters: Iterable[Tensor], recipe: Recipe, device: torch.device) -> Descent:
    """The recipe's, on the parameters of a network."""

    def treated(parameter: Tensor) -> Treatment:
        convolves = recipe.optimiser == "muon" and parameter.ndim == 4
        return by_muon(recipe) if convolves else (1.0, "adam")

    return Descent(((p, treated(p)) for p in parameters), recipe, device)


def at_least_two(batch: Tensor) -> Tensor:
    """The batch, twice if it is one image: at 1×1 that has no variance to normalise by."""
    return torch.cat([batch, batch]) if len(batch) == 1 else batch


def build(options: MachineOptions, in_channels: int, num_classes: int) -> ResNet:
    """The network of the shape of the machine that ``options`` describe."""
    network = ResNet(in_channels, num_classes, *zip(*options.stages, strict=True))
    convolution = network.input[0]
    assert isinstance(convolution, nn.Conv2d)
    convolution.stride = (options.input_stride, options.input_stride)
    return network

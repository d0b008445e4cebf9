r"""The gradient of the objective on a batch, by several processes and in several pieces.

With a batch of B images, of which one pass of one process sees :math:`B_p`,

.. math:: \nabla\mathcal L = \sum_p \frac{B_p}{B}\,\nabla\mathcal L_p,

where :math:`\mathcal L_p` is the objective on those images. As the weights sum to one, every KL
counts once, whatever the number of processes and pieces. The sum is exact where no image depends
on another. Statistics of the batch are those of all processes in a pass, and so exact for any
number of processes, but not for more than one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from convdkm.errors import NumericalError
from convdkm.layers.norm import RunningStatistics
from convdkm.model import DeepKernelMachine, ModelPlan, Objective
from convdkm.ops.synchronise import Share, working_on
from convdkm.training.batches import generator_of, seed_of
from convdkm.training.gradients import RecordedGradients
from convdkm.training.world import World, parts

SAMPLES = 1
"""Marks, beside a step's seed, the stream that Gram layers are sampled from."""


@dataclass
class Figures:
    """What a step found on the whole batch.

    Attributes:
        values: the objective and its parts, per image, and the accuracy where there are classes.
        layers: the KL of every layer, in nats.
        images: of the batch, over all processes.
        gradients: the size of every layer's gradient beside its parameters, where it is noted.
    """

    values: dict[str, float]
    layers: dict[str, Tensor]
    images: int
    gradients: dict[str, float] = field(default_factory=dict)

    @property
    def divergences(self) -> dict[str, float]:
        """The KL of every layer, as numbers."""
        return {name: value.item() for name, value in self.layers.items()}


class Passes:
    """Works out gradients and leaves them with the parameters.

    Args:
        model: the machine, which has been initialised.
        world: the processes that share every batch.
        num_data: number of training images.
        micro_batch: the most images that a process works on at a time; None for all it has.
        record: where one process works on whole batches, record a step and play it again.
    """

    def __init__(
        self,
        model: DeepKernelMachine,
        world: World,
        *,
        num_data: int,
        micro_batch: int | None = None,
        record: bool = False,
    ) -> None:
        self.model, self.world = model, world
        self._recorded = RecordedGradients(model, num_data=num_data) if record else None
        self.num_data, self.micro_batch = num_data, micro_batch
        self._loss = _Loss(model, num_data, reaches_all=world.size > 1)
        self._parallel: DistributedDataParallel | None = None
        if world.size > 1:
            # Running statistics are the same in all processes, being those of the whole batch.
            names = signature(DistributedDataParallel).parameters
            new = "forward_sync_buffers" in names  # of PyTorch 2.13 and later
            option: dict[str, Any] = {"forward_sync_buffers" if new else "broadcast_buffers": False}
            self._parallel = DistributedDataParallel(self._loss, **option)

    def gradients(
        self, inputs: Tensor, targets: Tensor, *, total: int, seed: int, nu_factor: float = 1.0
    ) -> Figures:
        """Add the gradient of minus the objective on the whole batch to every parameter's.

        A numerical failure in any process is raised in all of them. The figures are those of the
        objective itself, whatever ``nu_factor`` is.

        Args:
            inputs: images of this process; a single one of any other where it has no share.
            targets: their labels.
            total: images of the whole batch.
            seed: of the whole batch's random numbers.
            nu_factor: what every ν is multiplied by in the gradient.
        """
        passes = shares(total, self.world, self.micro_batch, seed)
        if self._recorded is not None and self.world.size == len(passes) == 1:
            torch.manual_seed(seed_of(seed, self.world.rank, 0))
            with working_on(passes[0]):
                objective = self._recorded(
                    inputs, targets, generator_of(seed, SAMPLES), nu_factor=nu_factor
                )
            return self._figures(objective, _found(objective, targets), targets, total)
        self.model.resample(generator_of(seed, SAMPLES))  # the same in all processes
        with self._agreeing():
            plan = self.model.plan()
        start = self.world.shares(total)[self.world.rank].start
        forward = self._loss if self._parallel is None else self._parallel
        sums = [0.0, 0.0, 0.0]
        rest = total
        for index, share in enumerate(passes):
            rest -= share.together
            last = index == len(passes) - 1
            torch.manual_seed(seed_of(seed, self.world.rank, index))
            first = share.first - start if share.count else 0
            images = slice(first, first + max(share.count, 1))
            piece, labels, weight = inputs[images], targets[images], share.count / total
            with (
                _momentum(self.model, share.together / total, rest / total),
                nullcontext() if last or self._parallel is None else self._parallel.no_sync(),
            ):
                with self._agreeing(), working_on(share):
                    scale = weight * self.world.size
                    loss, objective = forward(piece, labels, plan, scale, nu_factor)
                loss.backward(retain_graph=not last)
            found = _found(objective, labels)
            sums = [a + weight * b for a, b in zip(sums, found, strict=True)]
        return self._figures(objective, sums, targets, total)

    def _figures(
        self, objective: Objective, sums: list[float], targets: Tensor, total: int
    ) -> Figures:
        whole, expected, accuracy = self.world.sum(sums)
        values = {
            "objective": whole,
            "expected_log_likelihood": expected,
            "head_kl": objective.head_kl.item() / self.num_data,
            "kl": objective.regulariser.item() / self.num_data,
        }
        if not targets.dtype.is_floating_point:
            values["accuracy"] = accuracy
        layers = {name: term.value.detach() for name, term in objective.kl.items()}
        return Figures(values, layers, total)

    @contextmanager
    def _agreeing(self) -> Iterator[None]:
        """A numerical failure inside the block, in any process, is raised in all of them."""
        failure = None
        try:
            yield
        except NumericalError as error:
            failure = error
        if self.world.any(failure is not None):
            raise failure or NumericalError("another process failed")


class _Loss(nn.Module):
    """Minus the weighted objective, as the ``forward`` that DistributedDataParallel asks for.

    ``reaches_all`` makes every parameter part of the loss: DistributedDataParallel waits for the
    gradients of all, and would wait for ever for those of one that is not used.
    """

    def __init__(self, model: DeepKernelMachine, num_data: int, *, reaches_all: bool) -> None:
        super().__init__()
        self.model, self.num_data, self.reaches_all = model, num_data, reaches_all
        self._idle: list[Tensor] | None = None

    def forward(
        self, inputs: Tensor, targets: Tensor, plan: ModelPlan, weight: float, nu_factor: float
    ) -> tuple[Tensor, Objective]:
        objective = self.model.objective(inputs, targets, num_data=self.num_data, plan=plan)
        loss = -weight * objective.weighted(nu_factor)
        if self.reaches_all:
            if self._idle is None:
                used = _leaves_of(loss)
                learned = (p for p in self.parameters() if p.requires_grad)
                self._idle = [p for p in learned if id(p) not in used]
            for parameter in self._idle:
                loss = loss + 0 * parameter.sum()
        return loss, objective


def shares(total: int, world: World, micro_batch: int | None, seed: int) -> list[Share]:
    """What this process works on in every pass; all processes make as many passes.

    Passes differ by one image at most, so that none has to rely on the statistics of a few.
    """
    every = world.shares(total)
    count = 1 if micro_batch is None else -(-len(every[0]) // micro_batch)
    passes = zip(*(parts(images, count) for images in every), strict=True)
    return [
        Share(
            first=min(ranges[world.rank].start, total - 1),
            count=len(ranges[world.rank]),
            together=sum(map(len, ranges)),
            total=total,
            seed=seed,
            synchronised=world.size > 1,
        )
        for ranges in passes
    ]


@contextmanager
def _momentum(model: nn.Module, weight: float, rest: float) -> Iterator[None]:
    r"""Inside the block, running averages follow one of several pieces of a batch.

    Pieces with weights :math:`w_j` and statistics :math:`s_j` shall together move an average R as
    one batch does, :math:`R \leftarrow (1-m)R + m\sum_j w_j s_j`. Taken one after the other they
    need the momenta :math:`m_j = m w_j / (1 - m\sum_{i>j} w_i)`.
    """
    if weight == 1:
        yield
        return
    layers = [module for module in model.modules() if isinstance(module, RunningStatistics)]
    momenta = [layer.momentum for layer in layers]
    try:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum * weight / (1 - momentum * rest)
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


def _found(objective: Objective, targets: Tensor) -> list[float]:
    """The objective, the expected log-likelihood and the accuracy of one pass; 0 for real targets.

    An image counts as right if its highest function is that of its class.
    """
    accuracy = 0.0
    if not targets.dtype.is_floating_point:
        highest = objective.marginals.mean.argmax(1)
        accuracy = (highest == targets.to(highest.device)).double().mean().item()
    return [objective.total.item(), objective.expected_log_likelihood.item(), accuracy]


def _leaves_of(value: Tensor) -> set[int]:
    """The ids of the tensors that a gradient of ``value`` reaches."""
    leaves, seen, waiting = set(), set(), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            leaves.add(id(leaf))
        waiting.extend(entry for entry, _ in node.next_functions)
    return leaves

"""Who is timed: the machine, its textbook version and the network, on the same images."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from convdkm.architectures import PUBLISHED, resnet
from convdkm.checks import check_positive
from convdkm.errors import InvalidInputError
from convdkm.lab.bench.cnn import ResNet
from convdkm.lab.bench.measure import Lap
from convdkm.lab.bench.textbook import Textbook
from convdkm.model import DeepKernelMachine
from convdkm.runtime.memory import peak_memory
from convdkm.training.gradients import RecordedGradients

CHANNELS, CLASSES, NUM_DATA, NU = 3, 10, 50_000, 0.01
INITIAL_IMAGES = 512
RATE, BETAS = 1e-4, (0.8, 0.9)
LAYOUTS = {"CNN": torch.contiguous_format, "CNN, channels last": torch.channels_last}
LEAST_CHANNELS_LAST = 8
"""With 4 channels, oneDNN as of torch 2.13 writes past the end of tensors in this layout."""


@dataclass(frozen=True)
class Workload:
    """Sizes of a machine and of its batches.

    Attributes:
        widths: inducing points, or channels, of every stage.
        batch: images of a batch.
        side: height and width of an image.
        blocks: residual blocks of every stage.
        seed: of images, labels and parameters.
    """

    widths: tuple[int, ...] = (16, 32, 64)
    batch: int = 256
    side: int = 32
    blocks: tuple[int, ...] = (3, 3, 3)
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.blocks) or min(self.widths) < 1:
            raise InvalidInputError(
                f"widths are {len(self.blocks)} positive numbers, one for each stage of the"
                f" machine, such as 16,32,64; got {','.join(map(str, self.widths)) or 'none'}"
            )
        check_positive(batch=self.batch)
        if self.side < 2:
            raise InvalidInputError(f"side must be at least 2, got {self.side}")

    @property
    def name(self) -> str:
        return "/".join(map(str, self.widths))

    @property
    def strides(self) -> tuple[int, ...]:
        return (2,) * len(self.blocks)

    def images(self, count: int) -> Tensor:
        """Standard normal images."""
        shape = (count, CHANNELS, self.side, self.side)
        return torch.randn(shape, generator=torch.Generator().manual_seed(self.seed))

    def labels(self, count: int) -> Tensor:
        """Random classes."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        return torch.randint(CLASSES, (count,), generator=generator)


class Contestant:
    """Something that takes training steps and predicts, always on the same batch.

    Args:
        loss: the forward pass, down to what is minimised.
        parameters: what Adam moves.
        predict: probabilities of the classes.
        gradients: the forward and the backward pass, where they are not those of ``loss``.
    """

    def __init__(
        self,
        loss: Callable[[], Tensor],
        parameters: Iterable[Tensor],
        predict: Callable[[], object] | None = None,
        gradients: Callable[[], object] | None = None,
    ) -> None:
        self.loss, self.predict, self.gradients = loss, predict, gradients
        self.optimiser = torch.optim.Adam(list(parameters), lr=RATE, betas=BETAS, fused=True)

    def step(self) -> None:
        """Forward, backward, and a step of Adam. Gradients stay until :meth:`forget`."""
        if self.gradients is None:
            self.loss().backward()
        else:
            self.gradients()
        self.optimiser.step()

    def forget(self) -> None:
        """Drop the gradients."""
        self.optimiser.zero_grad(set_to_none=True)

    def memory(self) -> int:
        """Bytes that a step takes at its worst moment, beyond what stood before."""
        self.forget()
        return peak_memory(self.step)

    def lap(self) -> Lap:
        """A training step; seconds of the whole and of the forward pass.

        Where both passes are one, the forward pass is done and timed once more by itself.
        """
        start = time.perf_counter()
        self.forget()
        if self.gradients is None:
            loss = self.loss()
            forward = time.perf_counter()
            loss.backward()
            self.optimiser.step()
            return time.perf_counter() - start, forward - start
        self.step()
        end = time.perf_counter()
        self.loss()
        return end - start, time.perf_counter() - end


def machine(workload: Workload, *, compiled: bool = False) -> DeepKernelMachine:
    """The machine, with the settings of the published runs, started from images."""
    options: dict[str, Any] = {**PUBLISHED, "expectation": "nodes", "strides": workload.strides}
    torch.manual_seed(workload.seed)
    model = resnet(CHANNELS, CLASSES, workload.widths, workload.blocks, nu=NU, **options)
    model.initialise(
        workload.images(INITIAL_IMAGES), workload.labels(INITIAL_IMAGES), seed=workload.seed
    )
    if compiled:
        model.compile_elementwise()
    return model


def ours(workload: Workload, model: DeepKernelMachine, *, compiled: bool = False) -> Contestant:
    """The machine as a user runs it: float32 data path, no samples, a folded predictor.

    Where it is ``compiled``, so is the predictor, and steps are recorded, as ``--compile`` does.
    """
    images, labels = workload.images(workload.batch), workload.labels(workload.batch)
    folded = model.folded(deterministic=True).use_compiled(compiled)
    recorded = RecordedGradients(model, num_data=NUM_DATA)
    return Contestant(
        lambda: -model.objective(images, labels, num_data=NUM_DATA).total,
        model.parameters(),
        lambda: folded.predict(images),
        (lambda: recorded(images, labels)) if compiled else None,
    )


def textbook(workload: Workload, model: DeepKernelMachine) -> Contestant:
    """The paper's equations in float64 with the parameters of a model, and 1000 samples."""
    images, labels = workload.images(workload.batch).double(), workload.labels(workload.batch)
    written = Textbook(model, workload.strides, NU)
    return Contestant(lambda: -written.objective(images, labels, NUM_DATA), written.named.values())


def networks(workload: Workload) -> dict[str, Contestant]:
    """The network in both memory layouts, or in the usual one where it is too narrow for both."""
    count = 2 if min(workload.widths) >= LEAST_CHANNELS_LAST else 1
    return {name: cnn(workload, LAYOUTS[name]) for name in list(LAYOUTS)[:count]}


def cnn(workload: Workload, layout: torch.memory_format = torch.contiguous_format) -> Contestant:
    """The network with the same convolutions, in one of torch's two memory layouts."""
    torch.manual_seed(workload.seed)
    network = ResNet(CHANNELS, CLASSES, workload.widths, workload.blocks, workload.strides)
    network = network.to(memory_format=layout)  # type: ignore[call-overload]
    images = workload.images(workload.batch).to(memory_format=layout)
    labels = workload.labels(workload.batch)

    def predict() -> Tensor:
        network.eval()
        with torch.inference_mode():
            probabilities = torch.softmax(network(images), 1)
        network.train()
        return probabilities

    return Contestant(
        lambda: F.cross_entropy(network(images), labels), network.parameters(), predict
    )

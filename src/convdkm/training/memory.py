"""What training will take of memory, found before it begins, and whether that much is there.

Steps on a few images are measured on a copy of the machine. All that grows with the images grows in
proportion to their number and to their pixels, so that a line through two measurements gives the
rest. Where a generous bound is far below what is there, nothing is measured.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from convdkm.config import Recipe
from convdkm.errors import ConvDKMError, InvalidInputError
from convdkm.kernels import pointwise
from convdkm.model import DeepKernelMachine
from convdkm.runtime.maps import smaller_pieces
from convdkm.runtime.memory import available_memory, peak_memory
from convdkm.training.build import products_in
from convdkm.training.optimiser import bytes_of_state
from convdkm.training.passes import Passes
from convdkm.training.world import World

CAREFREE = 0.1
"""Share of the memory that is there below which a bound will do."""
ENOUGH = 0.9
"""Share of the memory that is there above which there is a warning."""
PROBE_PLACES = 64 * 64
"""Pixels that the smaller of two measurements has about; images that have more are made smaller."""
PIECE = 1 << 11
"""Numbers in a piece of a map there; see :func:`convdkm.runtime.maps.smaller_pieces`."""
IN_WORK = 5
"""Pieces of their real size that a kernel's gradient has at once."""
FEWEST, MOST = 2, 8
"""Images of that measurement."""
MOST_INITIAL = 512
KEPT, LIVE, CHAINS, SAMPLES = 2, 16, 24, 8
"""The bound: maps kept for each layer, live at once, copies of parameters and of samples."""


@dataclass(frozen=True)
class Line:
    """Bytes as a function of the number of images."""

    fixed: float
    per_image: float

    def at(self, images: int) -> float:
        return self.fixed + self.per_image * images

    def images_within(self, size: float) -> int:
        """The most images that ``size`` bytes are enough for; a multiple of 8 if there are many."""
        most = int((size - self.fixed) // max(self.per_image, 1.0))
        return max(0, most - most % 8 if most > 16 else most)


@dataclass(frozen=True)
class Demand:
    """What a run asks of one process.

    Attributes:
        image_shape: channels, then space.
        at_a_time: images that a step works on at a time.
        evaluation: images that evaluation works on at a time.
        in_pieces: whether a step works on a batch in pieces.
        initial: images that initialisation looks at; 0 where there is none.
        processes: that share a batch.
        held: bytes of the images that are in memory already.
        copied: bytes of the images that will be copied.
        checkpointing: whether blocks are worked out again in the backward pass.
        recipe: gives the precision of a step, and the averages that its optimiser keeps.
    """

    image_shape: tuple[int, ...]
    at_a_time: int
    evaluation: int
    in_pieces: bool = False
    initial: int = 0
    processes: int = 1
    held: int = 0
    copied: int = 0
    checkpointing: bool = False
    recipe: Recipe = field(default_factory=Recipe, compare=False)

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        images: Tensor,
        world: World,
        device: torch.device,
        *,
        initialises: bool = True,
        scored: Sequence[Tensor] = (),
    ) -> Demand:
        """From the recipe and the training images; ``scored`` are others that are in memory."""
        batch = min(recipe.batch_size, len(images))
        share = len(world.shares(batch)[0])
        at_a_time = min(recipe.micro_batch or share, share)
        evaluation = min(recipe.evaluation_batch, max(map(len, (images, *scored))))
        calibration = min(recipe.micro_batch or batch, recipe.calibrate)
        augments = recipe.crop or recipe.flip or recipe.cutout
        whitened = not augments or recipe.augment == "after-whitening"
        on_host = device.type == "cpu"
        return cls(
            tuple(images.shape[1:]),
            at_a_time,
            max(evaluation, calibration),
            in_pieces=at_a_time < share,
            initial=min(recipe.inducing_images, len(images)) if initialises else 0,
            processes=world.size,
            held=sum(each.nbytes for each in (images, *scored)) if on_host else 0,
            copied=images.nbytes * (whitened + (not on_host)),
            checkpointing=recipe.checkpointing,
            recipe=recipe,
        )


@dataclass(frozen=True)
class Estimate:
    """What training will take at most, in bytes, and what is there for this process.

    Both include what the process holds already. What is needed was ``measured``, or is a bound;
    where it is too much, ``warning`` says what to do.
    """

    needed: float
    there: float
    measured: bool
    warning: str | None = None

    def __str__(self) -> str:
        how = "about" if self.measured else "less than"
        return f"{how} {gigabytes(self.needed)} of {gigabytes(self.there)}"


def gigabytes(size: float) -> str:
    """Bytes as people write them."""
    if size < 0.95e9:
        return f"{max(size / 1e9, 0.01):.2g} GB"
    return f"{size / 1e9:.1f} GB" if size < 9.95e9 else f"{size / 1e9:,.0f} GB"


def estimate(
    model: DeepKernelMachine, demand: Demand, device: torch.device, there: int | None = None
) -> Estimate | None:
    """What a run will take of the memory that is there; None where that cannot be told.

    The model, whether initialised or not, and the state of random numbers are left as they are.

    Args:
        model: the machine, on the CPU.
        demand: what the run asks of it.
        device: where it will be.
        there: bytes that can be taken; what the device has left by default.
    """
    if there is None:
        there = available_memory(device)
        if there is None:
            return None
        if device.type == "cpu":
            there //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # The optimiser's averages, the copy of parameters and averages that a failed step goes back to,
    # and the parameters themselves where they are not yet on the device.
    copies = 1 if device.type == "cpu" else 2
    standing = copies * _bytes_of(model) + 2 * bytes_of_state(model, demand.recipe) + demand.copied
    bound = upper_bound(model, demand)
    if bound is not None and standing + bound <= CAREFREE * there:
        return Estimate(demand.held + standing + bound, demand.held + there, measured=False)
    forked = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=forked), torch.enable_grad():
        try:
            return _judged(Probe(model, demand, device), demand, standing, there)
        except ConvDKMError:  # training will come upon it too, and say what it is
            return None


def upper_bound(model: DeepKernelMachine, demand: Demand) -> float | None:
    """Bytes that no part of training comes near; None for layers that are not known here."""
    modules = list(model.modules())
    if not all(type(module).__module__.startswith(("convdkm.", "torch.")) for module in modules):
        return None
    widths = [getattr(m, "out_inducing", getattr(m, "num_inducing", 0)) or 0 for m in modules]
    widths.append(len(model.input.inducing))
    places = math.prod(demand.image_shape[1:])
    samples = SAMPLES * getattr(model.likelihood, "samples", 0) * model.likelihood.num_outputs
    live = LIVE * max(widths) * places + samples + math.prod(demand.image_shape)
    kept = KEPT * sum(widths) * places
    images = max(demand.at_a_time, demand.evaluation, demand.initial)
    entries = max(live * images, (live + kept) * demand.at_a_time)
    return CHAINS * _bytes_of(model) + model.dtype.itemsize * entries


class Probe:
    """A copy of a machine, to be measured on a device.

    ``initialisation`` is what initialisation takes, on the CPU.
    """

    def __init__(self, model: DeepKernelMachine, demand: Demand, device: torch.device) -> None:
        self.device, self._precision = device, demand.recipe.precision
        channels, *space = demand.image_shape
        small = space
        while math.prod(small) > PROBE_PLACES and min(small) >= 32:
            small = [side // 2 for side in small]
        self._shape = (channels, *small)
        self._scale = math.prod(space) / math.prod(small)
        self._images = min(max(PROBE_PLACES // math.prod(small), FEWEST), MOST)
        self.model = copy.deepcopy(model)
        self.initialisation = self._initialised()
        self.model.to(device).train()
        self._passes = Passes(self.model, World(), num_data=1)
        self._optimiser = torch.optim.Adam(self.model.parameters(), lr=0.0)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self._optimiser.step()  # which makes its averages

    def step(self, *, checkpointing: bool) -> Line:
        """What a training step takes."""
        if checkpointing:
            self.model.checkpointing = True

        def one(inputs: Tensor, targets: Tensor) -> None:
            with products_in(self._precision, self.device):
                self._passes.gradients(inputs, targets, total=len(inputs), seed=0)
            self._optimiser.step()

        line = self._line(one, self._images, self.device)
        # The pieces in which gradients of kernels are worked out, which were smaller here.
        working = IN_WORK * pointwise.PIECE * self.model.dtype.itemsize
        return replace(line, fixed=line.fixed + working) if self.device.type == "cpu" else line

    def evaluation(self) -> Line:
        """What predictions take."""

        def one(inputs: Tensor, _: Tensor) -> None:
            self.model.folded().predict(inputs)

        return self._line(one, self._images, self.device)

    def _initialised(self) -> Line:
        start, images = partial(self.model.initialise, seed=0), self._images
        while True:
            try:
                return self._line(start, images, torch.device("cpu"))
            except InvalidInputError:  # there are inducing points made of patches, and too few
                images *= 2
                if images > MOST_INITIAL:
                    raise

    def _line(
        self, action: Callable[[Tensor, Tensor], object], images: int, device: torch.device
    ) -> Line:
        """The line through the peaks for ``images`` and twice as many images."""
        peaks = []
        for count in (images, 2 * images):
            inputs = torch.randn(count, *self._shape).to(device)
            targets = (torch.arange(count) % self.model.likelihood.num_outputs).to(device)
            self.model.zero_grad()
            with smaller_pieces(PIECE):
                peaks.append(peak_memory(partial(action, inputs, targets), device))
        slope = max(0, peaks[1] - peaks[0]) / images
        return Line(max(0.0, peaks[0] - slope * images), slope * self._scale)


def _judged(probe: Probe, demand: Demand, standing: int, there: int) -> Estimate:
    """The estimate, and where it is too much, what would fit."""
    start = probe.initialisation
    step = probe.step(checkpointing=demand.checkpointing)
    evaluation = start  # which does more than a prediction
    if evaluation.at(demand.evaluation) > step.at(demand.at_a_time):
        evaluation = probe.evaluation()
    parts = (
        step.at(demand.at_a_time),
        evaluation.at(demand.evaluation),
        start.at(demand.initial) if demand.initial and probe.device.type == "cpu" else 0.0,
    )
    needed, limit = demand.held + standing + max(parts), demand.held + there
    room = ENOUGH * there - standing
    if max(parts) <= room:
        return Estimate(needed, limit, measured=True)
    advice = _on_steps(probe, demand, step, room) if parts[0] > room else []
    if parts[1] > room and (fits := evaluation.images_within(room)):
        advice.append(f"Evaluate fewer images at a time: --evaluation-batch {fits}")
    if parts[2] > room and (fits := start.images_within(room)):
        advice.append(f"Initialise by fewer images: --inducing-images {fits}")
    warning = (
        f"this run will take about {gigabytes(needed)} of memory, and {gigabytes(limit)} are there,"
        f" so that the system may end it. {'. '.join(advice)}"
    )
    return Estimate(needed, limit, measured=True, warning=warning)


def _on_steps(probe: Probe, demand: Demand, step: Line, room: float) -> list[str]:
    """Advice where a training step does not fit into ``room`` bytes."""
    advice = []
    processes = 1 if demand.in_pieces else demand.processes
    fits = step.images_within(room)
    if fits:
        advice.append(f"--micro-batch {fits} fits")
        if not demand.in_pieces:
            advice[0] += ", which works on a batch in pieces, and so does --batch-size"
            advice[0] += f" {fits * processes}"
    if not demand.checkpointing:
        other = probe.step(checkpointing=True)
        option = "--micro-batch" if demand.in_pieces else "--batch-size"
        if other.at(demand.at_a_time) <= room:
            advice.append("--checkpointing alone would do")
        elif (more := other.images_within(room)) > fits:
            advice.append(f"With --checkpointing, {option} {more * processes} fits")
    return advice or [
        "Not even one image at a time fits: take fewer inducing points (--inducing), smaller images"
        " (--image-size) or a larger --input-stride"
    ]


def _bytes_of(model: DeepKernelMachine) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())

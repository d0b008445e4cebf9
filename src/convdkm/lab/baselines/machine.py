"""The deep kernel machine itself, and the inducing NNGP that it is at ν = ∞."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor

from convdkm.config import RunConfig
from convdkm.data.whitening import NoWhitening
from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.base import Baseline, Tell, check_training_set
from convdkm.lab.baselines.descent import Budget
from convdkm.model import DeepKernelMachine
from convdkm.presets import preset as preset_named
from convdkm.training.batches import Batches
from convdkm.training.build import built, dtype_of, initialise, tuned
from convdkm.training.cost import run_flops
from convdkm.training.loop import Trainer
from convdkm.training.memory import Demand, estimate
from convdkm.training.run import Run
from convdkm.training.sinks import EpochRecord, Level, Sink
from convdkm.training.world import World, find_device

TRIAL_STEPS = 3
"""Steps that are timed, after a first one, to see how many epochs fit into the time."""
SPENT = 0.9
"""Share of the remaining time that those epochs may take."""


def recipe_of(preset: str, dataset: str, options: dict[str, Any]) -> RunConfig:
    """A preset's settings for images that are whitened already.

    Raises:
        InvalidInputError: for an option that says otherwise.
    """
    if options.get("whitening", "none") != "none":
        raise InvalidInputError(
            f"whitening is {options['whitening']!r}, but a baseline is given images that are"
            " whitened already; leave the option out"
        )
    ours = {"whitening": "none", "augment": "after-whitening", "inducing_patches": "whitened"}
    return preset_named(preset).config(dataset, **{**options, **ours})


class Machine(Baseline):
    """A residual convolutional DKM, trained as ``convdkm train`` would with the same preset.

    With a time limit, a few steps are timed and the recipe is cut to the epochs that fit, so that
    its learning rate still comes down. Training stops when the time is over.

    Args:
        preset: name of the settings.
        dataset: name of the data set, which may have settings of its own in the preset.
        options: options of :class:`~convdkm.config.RunConfig`, except those of the images.
    """

    def __init__(self, preset: str = "quick", dataset: str = "images", **options: Any) -> None:
        self.config = recipe_of(preset, dataset, options)
        self.fitted: Run | None = None

    def fit(self, images: Tensor, labels: Tensor) -> Machine:
        classes = check_training_set(images, labels)
        budget, sink, config = Budget(self.minutes), _Teller(self.tell), self.config
        training, device = config.training, find_device(config.training.device)
        inputs = images.to(device, dtype_of(training))
        batches = Batches.of(training, inputs, labels.long().to(device))
        self.cut_short = False
        if self.minutes is not None:
            epochs = self._epochs_within(budget, self._initialised(batches, classes), batches)
            if epochs < training.epochs:
                self.cut_short = True
                self.tell(f"{epochs} epochs of {training.epochs} fit into the time")
                config = config.updated({"epochs": epochs})
        model = self._initialised(batches, classes)
        recipe = tuned(model, config.training, sink.message)
        recipe = recipe.model_copy(update={"evaluate_every": 0})
        trainer = Trainer(model, batches, recipe, sinks=[sink], stop=budget.over)
        with trainer.sinks:
            progress = trainer.run()
        if progress.interrupted:
            trainer.calibrate()
            self.cut_short = True
            self.tell(f"stopped after step {progress.step} of {trainer.total_steps}: out of time")
        names, shape = tuple(map(str, range(classes))), tuple(images.shape[1:])
        self.fitted = Run(config, model.eval(), NoWhitening(), names, shape, step=progress.step)
        return self

    def scores(self, images: Tensor) -> Tensor:
        predicted = self.require_fitted(self.fitted).predict(images).log_probs.double()
        return torch.log_softmax(predicted, 1).to(images.device)

    @property
    def parameters(self) -> int:
        parameters = self.require_fitted(self.fitted).model.parameters()
        return sum(p.numel() for p in parameters if p.requires_grad)

    def flops(self, images: Tensor, labels: Tensor) -> float | None:
        run, training = self.require_fitted(self.fitted), self.config.training
        inputs = images.to(run.model.device, dtype_of(training))
        batches = Batches.of(training, inputs, labels.long().to(inputs.device))
        return run_flops(run.model, batches, training, run.step)

    def foresee(self, images: Tensor, labels: Tensor) -> None:
        classes = check_training_set(images, labels)
        demand = Demand.of(self.config.training, images, World(), torch.device("cpu"))
        found = estimate(self._built(images.shape[1], classes), demand, torch.device("cpu"))
        if found is not None and found.warning is not None:
            raise InvalidInputError(found.warning)

    def _built(self, channels: int, classes: int) -> DeepKernelMachine:
        return built(self.config.model, self.config.training, channels, classes)

    def _initialised(self, batches: Batches, classes: int) -> DeepKernelMachine:
        images, labels = batches.images, batches.targets
        model = self._built(images.shape[1], classes)
        initialise(model, self.config.training, images.cpu(), labels.cpu(), NoWhitening())
        return model.to(images.device)

    def _epochs_within(self, budget: Budget, model: DeepKernelMachine, batches: Batches) -> int:
        """How many epochs fit into the time, by the time of a few steps; one at least."""
        marks: list[float] = []
        recipe = self.config.training.model_copy(update={"evaluate_every": 0, "calibrate": 0})

        def enough() -> bool:
            marks.append(time.perf_counter())
            return len(marks) > TRIAL_STEPS or budget.over()

        Trainer(model, batches, recipe, stop=enough).run()
        if len(marks) < 2:
            return recipe.epochs if not budget.over() else 1
        epoch = (marks[-1] - marks[0]) / (len(marks) - 1) * batches.steps
        return max(1, min(recipe.epochs, int(SPENT * budget.seconds_left / epoch)))


class InducingNNGP(Machine):
    """The same machine at ν = ∞: every Gram is its kernel, G = K, and no representation is learned.

    What is left to learn are the inducing inputs, the mixing weights of convolutions and the head:
    a sparse NNGP with a categorical likelihood.

    Unless an option says otherwise, two settings are not the preset's. The kernel is the paper's,
    the arc-cosine: without learned Grams, kernels such as that of ``fast`` reduce correlations to
    nothing in a few layers. Normalisations have no learned scales: a large variance of the head
    lowers the likelihood at first, so that scales shrink to zero, where nothing more is learned.
    """

    def __init__(self, preset: str = "quick", dataset: str = "images", **options: Any) -> None:
        if options.get("nu", math.inf) != math.inf:
            raise InvalidInputError(
                f"the inducing NNGP has nu = inf, got {options['nu']!r}; the machine for a finite"
                " one is Machine"
            )
        usual = {"kernel": "arc-cosine", "inducing_scale": "none", "data_scale": "none"}
        super().__init__(preset, dataset, **{**usual, **options, "nu": math.inf})


class _Teller(Sink):
    """Passes a run's epochs and messages on as lines."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell

    def epoch(self, record: EpochRecord) -> None:
        self.tell(f"epoch {record.epoch}: objective {record.values['objective']:.4f}")

    def message(self, text: str, level: Level = "info") -> None:
        self.tell(text)

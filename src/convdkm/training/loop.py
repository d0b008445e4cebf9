"""The training loop: steps on the objective, with evaluation, checkpoints and recovery.

Plain PyTorch, for one process or for those that ``torchrun`` starts: each takes its share of every
batch, together they make the step that one process would make, and the first writes the files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from convdkm.config import Recipe
from convdkm.data.augment import resized
from convdkm.errors import ConvDKMError, NotFiniteError, NumericalError
from convdkm.insight.instruments import Reading, gradient_ratios, readings
from convdkm.layers.norm import RunningStatistics
from convdkm.model import DeepKernelMachine
from convdkm.training.batches import INSTRUMENT_IMAGES, Batches, seed_of
from convdkm.training.build import products_in
from convdkm.training.checkpoint import (
    Checkpoint,
    CheckpointStore,
    Progress,
    load_optimiser_tensors,
    optimiser_tensors,
)
from convdkm.training.optimiser import Optimiser
from convdkm.training.passes import Figures, Passes
from convdkm.training.schedule import image_scale, learning_rate, nu_factor
from convdkm.training.sinks import (
    INSTRUMENTS,
    EpochRecord,
    LayersRecord,
    RunInfo,
    Sink,
    Sinks,
    StepRecord,
)
from convdkm.training.world import ProcessLostError, deferred_termination, noticing_losses

Evaluate = Callable[[], dict[str, float]]


class TrainingFailedError(ConvDKMError, ArithmeticError):
    """Too many steps in a row could not be taken."""


class ScoringStoppedError(Exception):
    """Some images are not scored, since the user asked to stop."""


class Trainer:
    """Trains a model that has been initialised.

    Args:
        model: the machine.
        batches: what it is trained on.
        config: the recipe.
        sinks: where records go.
        store: where checkpoints go; nowhere if not given.
        describe: more that a checkpoint should hold: tensors, and plain values.
        evaluate: called after an epoch as the recipe says; its figures join the epoch's record. It
            may stop by a :class:`ScoringStoppedError`, and is called again when training goes on.
        score: the name of the figure that decides which epoch is best; higher is better.
        stop: asked after every step whether to stop there, after saving.
    """

    def __init__(
        self,
        model: DeepKernelMachine,
        batches: Batches,
        config: Recipe,
        *,
        sinks: Iterable[Sink] = (),
        store: CheckpointStore | None = None,
        describe: Callable[[], Checkpoint] | None = None,
        evaluate: Evaluate | None = None,
        score: str = "objective",
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.model, self.batches, self.config = model, batches, config
        self.sinks, self.store, self.describe = Sinks(sinks), store, describe
        self.evaluate, self.score, self.stop = evaluate, score, stop
        self.world = batches.world
        self.optimiser = Optimiser(model, config, num_data=batches.num_data)
        self.progress = Progress()
        self.snapshot = Snapshot(model, self.optimiser)
        self._terminated: Callable[[], bool] = bool
        self._start, self._cpu_noted = time.perf_counter(), time.process_time()

    @property
    def total_steps(self) -> int:
        return self.config.epochs * self.batches.steps

    @cached_property
    def _passes(self) -> Passes:
        return Passes(
            self.model,
            self.world,
            num_data=self.batches.num_data,
            micro_batch=self.config.micro_batch,
            record=self.config.compile,
        )

    def _seconds(self) -> float:
        """Time spent so far, over all parts of the run."""
        return time.perf_counter() - self._start

    def _note_cpu_time(self) -> None:
        """Add the time of processors since it was last noted, over all processes."""
        now = time.process_time()
        self.progress.cpu_seconds += sum(self.world.sum([now - self._cpu_noted]))
        self._cpu_noted = now

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        checkpoint.load_into(self.model, "model")
        with checkpoint.fitting():
            load_optimiser_tensors(self.optimiser, checkpoint.part("optimiser"))
        self.progress = checkpoint.progress
        self.progress.interrupted = False

    def run(self, info: RunInfo | None = None) -> Progress:
        """Train until the last epoch is done, or until told to stop.

        Raises:
            ProcessLostError: another process is gone; the state after the last step is saved.
        """
        self.sinks.start(info or self.info())
        self.snapshot.take()
        device = self.model.device
        forked = [device] if device.type == "cuda" else []
        with deferred_termination(self.world) as terminated:
            self._terminated = terminated
            try:
                with noticing_losses(), torch.random.fork_rng(devices=forked):
                    self._run()
            except ProcessLostError as error:
                self.save()
                saved = self.store is not None and self.world.leads
                raise ProcessLostError(
                    f"training stopped after step {self.progress.step}"
                    f"{', which is saved' * saved}: {error}"
                ) from error
        return self.progress

    def asked_to_stop(self) -> bool:
        """Whether this process was told to stop."""
        return self._terminated() or (self.stop is not None and self.stop())

    def _run(self) -> None:
        progress = self.progress
        saved = progress.seconds
        self._start = time.perf_counter() - saved
        self._cpu_noted = time.process_time()
        at_start = {} if progress.step else self.readings()
        if progress.ending is not None and not self._end_epoch():
            return
        while progress.step < self.total_steps:
            for inputs, targets in self.batches.epoch(*divmod(progress.step, self.batches.steps)):
                began = self._seconds()
                figures, rate = self.step_until_it_works(inputs, targets)
                if not progress.step:
                    self._record_layers(figures.divergences, figures.gradients, at_start)
                progress.step += 1
                progress.seconds = self._seconds()
                self._record(figures, rate, progress.seconds - began)
                ends = self._ends_epoch(progress.step)
                if ends:
                    progress.ending = {
                        "values": {"learning_rate": rate},
                        "divergences": figures.divergences,
                        "gradients": figures.gradients,
                    }
                    if not self._end_epoch():
                        return
                self._note_cpu_time()
                stops = self.world.any(self.asked_to_stop())
                progress.interrupted = stops and progress.step < self.total_steps
                due = self._seconds() - saved >= 60 * self.config.checkpoint_minutes
                if not ends and (progress.interrupted or due):
                    self.save()
                if ends or due:
                    saved = self._seconds()
                if progress.interrupted:
                    return

    def _ends_epoch(self, step: int) -> bool:
        return step % self.batches.steps == 0

    # -- one step ------------------------------------------------------------------------------

    def step(self, inputs: Tensor, targets: Tensor) -> tuple[Figures, float]:
        """One step; raises before parameters are changed if a value is not finite."""
        progress = self.progress
        statistics: list[Tensor] = []
        if self.world.size > 1:  # where another process may be lost
            layers = (m for m in self.model.modules() if isinstance(m, RunningStatistics))
            statistics = [value for layer in layers for value in layer.buffers()]
        before = [value.clone() for value in statistics]
        try:
            with noticing_losses():
                figures = self.gradients(inputs, targets)
        except ProcessLostError:
            for value, old in zip(statistics, before, strict=True):
                value.copy_(old)
            raise
        self._require_finite_gradients()
        if self.world.leads and (not progress.step or self._ends_epoch(progress.step + 1)):
            figures.gradients = gradient_ratios(self.model)
        # The state of this moment gave a finite objective: it is what a failure goes back to.
        self.snapshot.take()
        rate = learning_rate(self.config, progress.step, self.total_steps) * progress.caution
        self.optimiser.set_rate(rate)
        self.optimiser.step()
        done = progress.step + 1
        self.optimiser.look_ahead(done, last=done == self.total_steps)
        progress.caution = min(1.0, progress.caution * 1.05)
        return figures, rate

    def gradients(self, inputs: Tensor, targets: Tensor) -> Figures:
        """The gradient of minus the objective on the batch of the step under way.

        The weight of the KL in it and the size of the images follow the recipe; the figures are by
        ν itself.
        """
        step, steps = self.progress.step, self.total_steps
        inputs = resized(inputs, image_scale(self.config, step, steps))
        self.model.train()
        self.optimiser.zero_grad()
        total = len(inputs) if self.world.size == 1 else self.batches.size(step)
        seed = seed_of(self.config.seed, 4, step, 0)
        factor = nu_factor(self.config, step, steps)
        with products_in(self.config.precision, self.model.device):
            return self._passes.gradients(inputs, targets, total=total, seed=seed, nu_factor=factor)

    def step_until_it_works(self, inputs: Tensor, targets: Tensor) -> tuple[Figures, float]:
        """A step; where it fails, back to the last good state and on with half the rate."""
        progress = self.progress
        for attempt in range(self.config.retries + 1):
            try:
                return self.step(inputs, targets)
            except NumericalError as error:
                reason = error
            self.snapshot.restore()
            progress.caution /= 2
            self.sinks.message(
                f"step {progress.step + 1} was not taken: {reason}. Going back one step and on with"
                f" {progress.caution:.3g} of the learning rate (try {attempt + 1} of"
                f" {self.config.retries})",
                "warning",
            )
        self.save()
        raise TrainingFailedError(
            f"training stopped at step {progress.step + 1} after {self.config.retries} tries, its"
            f" last good state saved: {reason}. A smaller learning_rate, a larger jitter or"
            " precision='float64' may help"
        )

    def _require_finite_gradients(self) -> None:
        named = [(n, p.grad) for n, p in self.model.named_parameters() if p.grad is not None]
        if torch.stack([grad.double().sum() for _, grad in named]).sum().isfinite():
            return
        bad = [name for name, grad in named if not grad.isfinite().all()]
        if bad:
            raise NotFiniteError(f"the gradient of {', '.join(bad[:3])}", self.model.dtype, 1, 1)

    # -- records and files ---------------------------------------------------------------------

    def info(self, name: str = "", **detail: str) -> RunInfo:
        """What the sinks are told at the start."""
        return RunInfo(
            name=name,
            epochs=self.config.epochs,
            steps_per_epoch=self.batches.steps,
            num_data=self.batches.num_data,
            first_step=self.progress.step,
            parameters=sum(p.numel() for p in self.model.parameters()),
            detail=detail,
        )

    def _record(self, figures: Figures, rate: float, seconds: float) -> None:
        sums = self.progress.sums
        for name, value in (*figures.values.items(), ("images", 1.0)):
            sums[name] = sums.get(name, 0.0) + value * figures.images
        if self.world.leads:
            values = {
                **figures.values,
                "learning_rate": rate,
                "images_per_second": figures.images / max(seconds, 1e-9),
                "seconds": self.progress.seconds,
            }
            epoch = -(-self.progress.step // self.batches.steps)
            self.sinks.step(StepRecord(self.progress.step, epoch, values))

    def _end_epoch(self) -> bool:
        """Evaluate, note and save an epoch; whether that was done, and not stopped before."""
        progress, every, ending = self.progress, self.config.evaluate_every, self.progress.ending
        assert ending is not None, "no epoch is at its end"
        epoch = progress.step // self.batches.steps
        names = {"accuracy": "train_accuracy", "expected_log_likelihood": "train_log_likelihood"}
        values = {
            names.get(name, name): value / progress.sums["images"]
            for name, value in progress.sums.items()
            if name != "images"
        }
        evaluates = progress.step == self.total_steps or (every and epoch % every == 0)
        went_back = stopped = False
        if evaluates:
            try:
                found, went_back = self._evaluated()
                values.update(found)
            except ScoringStoppedError:
                stopped = True
        progress.seconds = self._seconds()
        self._note_cpu_time()
        progress.interrupted = self.world.any(stopped)
        if progress.interrupted:
            self.save()
            return False
        progress.sums, progress.ending = {}, None
        values |= {**ending["values"], "seconds": progress.seconds}
        score = values.get(self.score)
        if score is not None and (progress.best is None or score > progress.best):
            progress.best = score
            self.save(as_best=True)
        read = self.readings() if evaluates else {}
        self._record_layers(ending["divergences"], ending["gradients"], read)
        if self.world.leads:
            self.sinks.epoch(EpochRecord(epoch, progress.step, values))
        # The leader alone evaluates; where it went back the others follow, once all is recorded.
        if evaluates and self.world.any(went_back) and not went_back:
            self.snapshot.restore()
            self.calibrate()
        self.save()
        return True

    def readings(self) -> dict[str, Reading]:
        """What the instruments say of the machine as it is, in the process that writes it down."""
        if not self.world.leads or not self.sinks.sinks:
            return {}
        try:
            images = self.batches.clean(INSTRUMENT_IMAGES, self.config.micro_batch)
            return readings(self.model, images)
        except NumericalError as error:
            self.sinks.message(f"the instruments of layers could not be read: {error}", "warning")
            return {}

    def _record_layers(
        self,
        divergences: Mapping[str, float],
        gradients: Mapping[str, float],
        read: Mapping[str, Reading],
    ) -> None:
        """Note all that is known of layers, in the order of the model."""
        if not self.world.leads:
            return
        known = {*divergences, *gradients, *read}
        in_order = [name for name, _ in self.model.named_modules() if name in known]
        values = {}
        for name in dict.fromkeys([*in_order, *divergences]):
            found = {"kl": divergences.get(name), "gradient": gradients.get(name)}
            found |= asdict(read[name]) if name in read else {}
            values[name] = {key: v for key in INSTRUMENTS if (v := found.get(key)) is not None}
        step = self.progress.step
        self.sinks.layers(LayersRecord(step // self.batches.steps, step, values))

    def _evaluated(self) -> tuple[dict[str, float], bool]:
        """Figures of the evaluation, and whether it had to go back to the last good state."""
        evaluate = self.evaluate if self.evaluate is not None and self.world.leads else dict
        try:
            self.calibrate()
            return evaluate(), False
        except NumericalError as error:
            self.sinks.message(f"evaluation failed: {error}. Going back one step", "warning")
            self.snapshot.restore()
        self.calibrate()
        return evaluate(), True

    def calibrate(self) -> None:
        """Make the running statistics exact for the parameters of the moment."""
        if count := self.config.calibrate:
            self.model.calibrate(self.batches.clean(count, self.config.micro_batch))

    def checkpoint(self) -> Checkpoint:
        """All that is needed to go on: model, optimiser, position, and what ``describe`` adds.

        Order of images, augmentation and samples are functions of the seed and the step, so that
        there is no random state besides them.
        """
        more = self.describe() if self.describe is not None else Checkpoint({}, {})
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        state = optimiser_tensors(self.optimiser)
        tensors |= {f"optimiser.{name}": value for name, value in state.items()}
        description: dict[str, Any] = {"progress": asdict(self.progress)}
        return Checkpoint(tensors | more.tensors, description | more.description)

    def save(self, *, as_best: bool = False) -> None:
        """Write a checkpoint: the last one, or the best."""
        if self.store is not None and self.world.leads:
            self.store.save(self.checkpoint(), as_best=as_best)


class Snapshot:
    """A copy in memory of parameters, buffers and optimiser state, to go back to."""

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        self._model, self._optimiser = model, optimiser
        self._values: list[Tensor] = []

    def _tensors(self) -> list[Tensor]:
        state = [value for entry in self._optimiser.state.values() for value in entry.values()]
        return [*self._model.parameters(), *self._model.buffers(), *state]

    @torch.no_grad()
    def take(self) -> None:
        """Remember this moment."""
        tensors = self._tensors()
        if len(self._values) != len(tensors):
            self._values = [tensor.detach().clone() for tensor in tensors]
            return
        for copy, tensor in zip(self._values, tensors, strict=True):
            copy.copy_(tensor)

    @torch.no_grad()
    def restore(self) -> None:
        """Go back to the moment remembered."""
        tensors = self._tensors()
        if len(tensors) > len(self._values):  # the moment was before the optimiser's first step
            self._optimiser.state.clear()
        for copy, tensor in zip(self._values, tensors, strict=False):
            tensor.copy_(copy)

"""One stretch of training: data, machine, trainer and files put together, then run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from convdkm.choices import ViewsName
from convdkm.config import RunConfig
from convdkm.data import Dataset
from convdkm.errors import InvalidInputError
from convdkm.model import DeepKernelMachine
from convdkm.storage.files import write_json
from convdkm.storage.text import in_shell
from convdkm.training.batches import Batches
from convdkm.training.build import (
    augmented,
    built,
    fitted_whitening,
    initialise,
    settled,
    tuned,
    unfitted_whitening,
)
from convdkm.training.checkpoint import Checkpoint, CheckpointStore, Progress
from convdkm.training.cost import if_countable, run_flops
from convdkm.training.folder import CHECKPOINTS, METRICS, TENSORBOARD, Writer
from convdkm.training.loop import ScoringStoppedError, Trainer
from convdkm.training.memory import Demand, Estimate, estimate
from convdkm.training.run import Run, class_metrics, parts_of
from convdkm.training.sinks import CsvSink, Level, LogSink, Sink, Sinks, tensorboard_of
from convdkm.training.sources import drawn, kept
from convdkm.training.world import ProcessLostError, World, find_device
from convdkm.views import Views

Stop = Callable[[], bool]
NAMES = {"train": "training", "test": "test", "validation": "validation"}
"""What the parts of the data are called in messages."""


def prepared(
    config: RunConfig,
    dataset: Dataset | None,
    world: World,
    folder: Path | None = None,
    writer: Writer | None = None,
    *,
    checkpoint: Checkpoint | None = None,
    model: DeepKernelMachine | None = None,
    sinks: Iterable[Sink] = (),
    stop: Stop | None = None,
) -> Session:
    """Load the images, build and initialise the machine, and write down what begins.

    Args:
        config: the whole configuration.
        dataset: the images; loaded by the configuration if None.
        world: the processes that train.
        folder: of the run; in memory only if None.
        writer: of that folder, in the process that leads.
        checkpoint: to go on from.
        model: a machine that the user built; built by the configuration if None.
        sinks, stop: as in :func:`convdkm.fit`.
    """
    own_model = model is not None
    if checkpoint is not None and checkpoint.value("own_model") and not own_model:
        raise InvalidInputError(
            "this run trains a machine of your own; resume it in Python, with"
            " resume(folder, model=…)"
        )
    device = find_device(config.training.device)
    listeners = list(sinks) if world.leads else []

    def tell(text: str, level: Level = "warning") -> None:
        Sinks(listeners).message(text, level)

    if checkpoint is None:
        images = drawn(config, dataset, tell)
        data = images.dataset
        recipe = settled(config.training, data.train_images, data.train_labels, tell)
        config = config.model_copy(update={"training": recipe})
        whitening = fitted_whitening(recipe, data.train_images, tell)
    else:
        images = kept(config, folder, dataset, tell, to_train=True)
        data, recipe = images.dataset, config.training
        _require_unchanged(data, checkpoint)
        whitening = unfitted_whitening(recipe)
        checkpoint.load_into(whitening, "whitening")
    whitening.to(device)
    if model is None:
        model = built(config.model, recipe, data.image_shape[0], data.num_classes)
    memory = None
    if world.leads:
        scored = [part.images for name, part in images.parts.items() if name != "train"]
        new = checkpoint is None
        demand = Demand.of(recipe, data.train_images, world, device, initialises=new, scored=scored)
        memory = estimate(model, demand, device)
    if memory is not None and memory.warning is not None:
        tell(memory.warning)
    if checkpoint is None:
        initialise(model, recipe, data.train_images, data.train_labels, whitening)
    else:
        # Now, since some parameters have no shape before, and the optimiser needs them all.
        checkpoint.load_into(model, "model")
    recipe = tuned(model.to(device), recipe, tell)
    run = Run(
        config.model_copy(update={"training": recipe}),
        model,
        whitening,
        data.class_names,
        data.image_shape,
        folder,
        leads=world.leads,
        own_model=own_model,
    )
    if checkpoint is None and writer is not None and (text := writer.begin(run.config, images)):
        tell(text, "info")
    if folder is not None and world.leads:
        before = Progress() if checkpoint is None else checkpoint.progress
        listeners += _file_sinks(folder, before, memory)
    train_images, train_labels = data.train_images.to(device), data.train_labels.to(device)
    trainer = Trainer(
        model,
        Batches.of(recipe, train_images, train_labels, whitening=whitening, world=world),
        recipe,
        sinks=listeners,
        store=None if folder is None else CheckpointStore(folder / CHECKPOINTS),
        describe=lambda: run.described(num_data=len(data.train_images)),
        score="validation_log_likelihood" if images.held_out is not None else "objective",
        stop=stop,
    )
    session = Session(data, images.held_out, run, trainer, world, memory)
    trainer.evaluate = session.figures_after_epoch
    if checkpoint is None:
        trainer.save()
    else:
        trainer.restore(checkpoint)
    return session


@dataclass(frozen=True, eq=False)
class Session:
    """One stretch of training, ready to begin; :func:`prepared` makes it.

    Attributes:
        dataset: the images for training and testing.
        held_out: those for validation, and their labels.
        result: the run, whose machine is trained.
        memory: what it will take, where that can be told.
    """

    dataset: Dataset
    held_out: tuple[Tensor, Tensor] | None
    result: Run
    trainer: Trainer
    world: World
    memory: Estimate | None

    def run(self) -> Run:
        """Train to the end, or until stopped; then the final figures."""
        result, trainer = self.result, self.trainer
        config, folder = result.config, result.folder
        detail = {
            "inducing": "/".join(map(str, config.model.inducing)),
            "ν": config.model.nu,
            "device": result.model.device,
            "precision": config.training.precision,
            "memory": self.memory,
            "folder": folder,
            "processes": self.world.size if self.world.size > 1 else None,
        }
        shown = {name: str(value) for name, value in detail.items() if value is not None}
        if folder is not None and self.world.leads:
            (folder / METRICS).unlink(missing_ok=True)  # of a shorter run
        try:
            with trainer.sinks:
                progress = trainer.run(trainer.info(config.data.dataset, **shown))
                result.step = progress.step
                if not progress.interrupted and self.world.leads:
                    self._keep(
                        self._final_figures(
                            epochs=config.training.epochs,
                            steps=progress.step,
                            seconds=progress.seconds,
                            cpu_seconds=progress.cpu_seconds,
                        )
                    )
                    self._keep(result.metrics | self._flops())
        except ScoringStoppedError:
            pass
        except ProcessLostError as error:
            if folder is None:
                raise
            command = f"convdkm resume {in_shell(folder)}"
            raise ProcessLostError(f"{error}. Go on with\n  {command}") from error
        result.model.eval()
        return result

    def figures_after_epoch(self) -> dict[str, float]:
        """Figures of all but the training images."""
        parts = self._parts()
        return self._figures(
            {part: parts[part] for part in ("validation", "test") if part in parts}, views="one"
        )

    def _final_figures(self, **training: float) -> dict[str, float]:
        """Figures of all images, and of the run: those given, and how large it is."""
        parts = self._parts()
        counts = {part: len(labels) for part, (_, labels) in parts.items()}
        named = ", ".join(f"{count:,} {NAMES[part]}" for part, count in counts.items())
        self.trainer.sinks.message(f"scoring {named} images")
        return {
            **self._figures(parts),
            **training,
            **{f"{part}_images": counts.get(part, 0) for part in ("train", "test")},
            "views": Views(self.result.config.training.views).count,
            "parameters": sum(p.numel() for p in self.result.model.parameters()),
        }

    def _keep(self, figures: dict[str, float]) -> None:
        """Make these the figures of the run, and write them."""
        self.result.metrics = figures
        if self.result.folder is not None:
            write_json(self.result.folder / METRICS, figures)

    def _flops(self) -> dict[str, float]:
        """Floating-point operations of all steps, where one of them can be counted."""
        result, trainer = self.result, self.trainer
        found = if_countable(
            lambda: run_flops(result.model, trainer.batches, trainer.config, result.step),
            partial(trainer.sinks.message, level="warning"),
        )
        return {} if found is None else {"flops": found}

    def _parts(self) -> dict[str, tuple[Tensor, Tensor]]:
        held_out = {} if self.held_out is None else {"validation": self.held_out}
        return parts_of(self.dataset) | held_out

    def _figures(
        self, parts: Mapping[str, tuple[Tensor, Tensor]], views: ViewsName | None = None
    ) -> dict[str, float]:
        """Figures of parts; training images are cropped and flipped if the recipe says so."""
        values: dict[str, float] = {}
        recipe = self.result.config.training
        for part, (images, labels) in parts.items():
            scored = augmented(recipe, images) if part == "train" else images
            watch = partial(self._watch, f"scoring {NAMES[part]} images")
            watch(0, len(images))
            found = self.result.evaluate(scored, labels, views=views, watch=watch)
            values |= class_metrics(part, found)
        return values

    def _watch(self, what: str, done: int, total: int) -> None:
        self.trainer.sinks.progress(what, done, total)
        if done < total and self.trainer.asked_to_stop():
            raise ScoringStoppedError(f"{what}: {done:,} of {total:,} were done")


def _require_unchanged(data: Dataset, checkpoint: Checkpoint) -> None:
    """Raise if the data is not that of the run."""
    now = {
        "num_data": len(data.train_images),
        "class_names": list(data.class_names),
        "image_shape": list(data.image_shape),
    }
    for name, value in now.items():
        if (before := checkpoint.value(name)) != value:
            raise InvalidInputError(
                f"the data is not what this run was trained on: {name} is {value}, and was {before}"
            )


def _file_sinks(folder: Path, before: Progress, memory: Estimate | None) -> list[Sink]:
    table = CsvSink(folder, keep_through_step=before.step, ends_epoch=before.ending is None)
    sinks: list[Sink] = [table, LogSink(folder)]
    sinks += tensorboard_of(folder / TENSORBOARD, before.step, Sinks(sinks).message)
    if memory is not None and memory.warning is not None:
        Sinks(sinks).message(memory.warning, "warning")  # it came before the folder
    return sinks

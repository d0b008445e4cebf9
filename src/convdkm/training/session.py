"""One stretch of training: data, machine, trainer and files put together, then run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from convdkm.config import RunConfig
from convdkm.data import Dataset
from convdkm.errors import InvalidInputError
from convdkm.model import DeepKernelMachine
from convdkm.storage.files import write_json
from convdkm.storage.text import in_shell
from convdkm.training.batches import Batches
from convdkm.training.build import (
    built,
    fitted_whitening,
    initialise,
    settled,
    tune,
    unfitted_whitening,
)
from convdkm.training.checkpoint import Checkpoint, CheckpointStore, Progress
from convdkm.training.folder import CHECKPOINTS, METRICS, TENSORBOARD, Writer
from convdkm.training.log import LogSink
from convdkm.training.loop import Trainer
from convdkm.training.memory import Demand, Estimate, estimate
from convdkm.training.run import Run
from convdkm.training.scoring import Scorer, ScoringStoppedError
from convdkm.training.sinks import CsvSink, Level, Sink, Sinks, tensorboard_of
from convdkm.training.sources import drawn, kept
from convdkm.training.world import ProcessLostError, World, find_device

Stop = Callable[[], bool]


def prepared(
    config: RunConfig,
    dataset: Dataset | None,
    world: World,
    *,
    folder: Path | None = None,
    writer: Writer | None = None,
    model: DeepKernelMachine | None = None,
    sinks: Iterable[Sink] = (),
    stop: Stop | None = None,
    checkpoint: Checkpoint | None = None,
) -> Session:
    """Load the images, build and initialise the machine, and write down what begins.

    Args:
        config: the whole configuration.
        dataset: the images; loaded by the configuration if None.
        world: the processes that train.
        folder: of the run, or None.
        writer: of that folder, in the process that leads.
        model: a machine of the user's own; built by the configuration if None.
        sinks: of the user's.
        stop: as in :func:`convdkm.fit`.
        checkpoint: to go on from.
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
    begun, memory = checkpoint is not None, None
    if world.leads:
        scored = [part.images for name, part in images.parts.items() if name != "train"]
        demand = Demand.of(
            recipe, data.train_images, world, device, initialises=not begun, scored=scored
        )
        memory = estimate(model, demand, device)
    if memory is not None and memory.warning is not None:
        tell(memory.warning)
    if checkpoint is None:
        initialise(model, recipe, data.train_images, data.train_labels, whitening)
    else:
        # Now, since some parameters have no shape before, and the optimiser needs them all.
        checkpoint.load_into(model, "model")
    tune(model.to(device), recipe, tell)
    run = Run(
        config, model, whitening, data.class_names, data.image_shape, folder, leads=world.leads
    )
    if writer is not None and not begun and (text := writer.begin(config, images)):
        tell(text, "info")
    if folder is not None and world.leads:
        before = Progress() if checkpoint is None else checkpoint.progress
        listeners += _file_sinks(folder, before, memory)
    trainer = Trainer(
        model,
        Batches.of(
            recipe,
            data.train_images.to(device),
            data.train_labels.to(device),
            whitening=whitening,
            world=world,
        ),
        recipe,
        sinks=listeners,
        store=None if folder is None else CheckpointStore(folder / CHECKPOINTS),
        describe=lambda: _description(run, len(data.train_images), own_model=own_model),
        score="validation_log_likelihood" if images.held_out is not None else "objective",
        stop=stop,
    )
    scorer = Scorer(run, data, images.held_out, sinks=trainer.sinks, stop=trainer.asked_to_stop)
    trainer.evaluate = scorer.after_epoch
    if checkpoint is None:
        trainer.save()
    else:
        trainer.restore(checkpoint)
    return Session(data, run, trainer, scorer, world, memory)


@dataclass(frozen=True, eq=False)
class Session:
    """One stretch of training, ready to begin; :func:`prepared` makes it.

    Attributes:
        dataset: the images for training and testing.
        result: the run, whose machine is trained.
        trainer: trains it.
        scorer: works out its figures.
        world: the processes that train.
        memory: what it will take, where that can be told.
    """

    dataset: Dataset
    result: Run
    trainer: Trainer
    scorer: Scorer
    world: World
    memory: Estimate | None

    def run(self) -> Run:
        """Train to the end, or until stopped; then the final figures."""
        result, trainer = self.result, self.trainer
        config, folder = result.config, result.folder
        detail = {
            "inducing": "/".join(map(str, config.model.inducing)),
            "ν": f"{config.model.nu}",
            "device": str(result.model.device),
            "precision": config.training.precision,
        }
        if self.memory is not None:
            detail["memory"] = str(self.memory)
        if folder is not None:
            detail["folder"] = str(folder)
            if self.world.leads:
                (folder / METRICS).unlink(missing_ok=True)  # of a shorter run
        if self.world.size > 1:
            detail["processes"] = str(self.world.size)
        try:
            with trainer.sinks:
                progress = trainer.run(trainer.info(config.data.dataset, **detail))
                result.step = progress.step
                if not progress.interrupted and self.world.leads:
                    result.metrics = self.scorer.at_the_end(
                        epochs=config.training.epochs,
                        steps=progress.step,
                        seconds=progress.seconds,
                    )
        except ScoringStoppedError:
            pass
        except ProcessLostError as error:
            if folder is None:
                raise
            command = f"convdkm resume {in_shell(folder)}"
            raise ProcessLostError(f"{error}. Go on with\n  {command}") from error
        if folder is not None and result.metrics:
            write_json(folder / METRICS, result.metrics)
        result.model.eval()
        return result


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


def _description(run: Run, num_data: int, *, own_model: bool) -> Checkpoint:
    """What a checkpoint holds besides the trainer's state."""
    tensors = {f"whitening.{name}": value for name, value in run.whitening.state_dict().items()}
    return Checkpoint(
        tensors,
        {
            "class_names": list(run.class_names),
            "image_shape": list(run.image_shape),
            "num_data": num_data,
            "own_model": own_model,
            "config": run.config.model_dump(mode="json"),
        },
    )

"""Train a machine from start to end: in memory, or as a run in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from convdkm.config import RunConfig
from convdkm.data import Dataset
from convdkm.data.whitening import make_whitening
from convdkm.errors import InvalidInputError
from convdkm.model import DeepKernelMachine
from convdkm.presets import preset
from convdkm.storage.files import write_json, write_text
from convdkm.storage.text import in_shell
from convdkm.training.batches import Batches, seed_of
from convdkm.training.build import build_model, settled, tune
from convdkm.training.checkpoint import Checkpoint, CheckpointStore, Progress
from convdkm.training.folder import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    TENSORBOARD,
    Writer,
    is_run,
    read_config,
    writing,
)
from convdkm.training.log import LogSink
from convdkm.training.loop import Trainer
from convdkm.training.memory import Demand, Estimate, estimate
from convdkm.training.run import Run, dtype_of, load_to_go_on
from convdkm.training.scoring import Scorer, ScoringStoppedError
from convdkm.training.sinks import CsvSink, Level, Sink, Sinks, tensorboard_of
from convdkm.training.sources import as_dataset, drawn, kept
from convdkm.training.world import ProcessLostError, World, find_device, joined_world

Stop = Callable[[], bool]


def fit(
    model: str | RunConfig | DeepKernelMachine = "quick",
    data: Any = None,
    *,
    folder: str | Path | None = None,
    overwrite: bool = False,
    sinks: Iterable[Sink] = (),
    stop: Stop | None = None,
    **options: Any,
) -> Run:
    """Train a machine on images.

    Args:
        model: a preset's name, a whole configuration, or a machine of your own (trained by the
            recipe of the preset ``quick`` where ``options`` do not say otherwise).
        data: the name of a data set, a path, a :class:`~convdkm.data.Dataset`, a pair
            ``(images, labels)`` or four arrays (training, then test), or a PyTorch dataset; that of
            the configuration, or the digits, by default.
        folder: keep the run there: settings, metrics of every step, checkpoints. In memory only by
            default.
        overwrite: replace a run that is in the folder.
        sinks: where else records go, such as :class:`~convdkm.training.TerminalSink`.
        stop: asked after every step, and after every batch that is scored, whether to stop there;
            the run can be resumed.
        options: any option of :class:`~convdkm.config.RunConfig`, such as ``epochs=3``.

    Returns:
        The run, with its figures in ``run.metrics``.
    """
    if data is None:
        data = model.data.dataset if isinstance(model, RunConfig) else "digits"
    dataset, name = as_dataset(data)
    if isinstance(model, RunConfig):
        config = model.updated({**options, "dataset": name})
    else:
        chosen = preset(model if isinstance(model, str) else "quick")
        config = chosen.config(name, **options)
    own = model if isinstance(model, DeepKernelMachine) else None
    folder = None if folder is None else Path(folder)
    with (
        joined_world(config.training.timeout_minutes) as world,
        _writer(folder, world, overwrite=overwrite) as writer,
    ):
        if writer is not None and own is None:
            writer.announce(config)
        session = Session(
            config,
            dataset,
            world,
            folder=folder,
            writer=writer,
            model=own,
            sinks=sinks,
            stop=stop,
        )
        return session.run()


def resume(
    folder: str | Path,
    *,
    data: Any = None,
    model: DeepKernelMachine | None = None,
    sinks: Iterable[Sink] = (),
    stop: Stop | None = None,
    **options: Any,
) -> Run:
    """Go on with a run that was stopped, from its last checkpoint, or from its start without one.

    Args:
        folder: of the run.
        data: the data of the run, where it cannot be loaded by its name; or where it is now.
        model: a machine of the same shape, where it was one of your own.
        sinks, stop: as in :func:`fit`.
        options: of the recipe that may change, such as ``device``.
    """
    folder = Path(folder)
    dataset, name = (None, None) if data is None else as_dataset(data)
    options |= {} if dataset is not None or name is None else {"dataset": name}
    found, no_settings = read_config(folder)
    config = found.updated(options)
    with (
        joined_world(config.training.timeout_minutes) as world,
        _writer(folder, world, resuming=True) as writer,
    ):
        store = CheckpointStore(folder / CHECKPOINTS)
        begun = bool(store.names()) or not is_run(folder)
        checkpoint, warning = load_to_go_on(store, config, model) if begun else (None, None)
        session = Session(
            config,
            dataset,
            world,
            folder=folder,
            writer=writer,
            model=model,
            sinks=sinks,
            stop=stop,
            checkpoint=checkpoint,
        )
        if world.leads:
            if options or no_settings:  # now that they are known to work
                write_text(folder / CONFIG, session.config.to_yaml())
            for text in filter(None, (warning, no_settings)):
                session.tell(text)
        return session.run()


def _writer(
    folder: Path | None, world: World, **how: bool
) -> AbstractContextManager[Writer | None]:
    """The right to write into the folder, for the process that does."""
    return writing(folder, **how) if folder is not None and world.leads else nullcontext()


class Session:
    """One stretch of training: puts data, model, trainer and files together.

    Args:
        config: the whole configuration.
        dataset: the images; loaded by the configuration if None.
        world: the processes that train.
        folder: of the run, or None.
        writer: of that folder, in the process that leads.
        model: a machine of the user's own; built by the configuration if None.
        sinks: of the user's.
        stop: as in :func:`fit`.
        checkpoint: to go on from.
    """

    def __init__(
        self,
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
    ) -> None:
        self.config, self.folder, self.world = config, folder, world
        self.own_model = model is not None
        self._check(checkpoint, model)
        self.device = device = find_device(config.training.device)
        self.memory: Estimate | None = None
        self.sinks = list(sinks) if world.leads else []
        if checkpoint is None:
            images = drawn(config, dataset, self.tell)
        else:
            images = kept(config, folder, dataset, self.tell, to_train=True)
        self.dataset = dataset = images.dataset
        self.held_out = images.held_out
        if checkpoint is not None:
            self._check_unchanged(checkpoint)
        else:
            self.config = config = settled(config, dataset, self.tell)

        data = config.data
        whitening = make_whitening(data.whitening, data.zca_epsilon)
        if checkpoint is None:
            if data.whitening.startswith("zca"):
                self.tell(f"fitting ZCA to {len(dataset.train_images):,} images", "info")
            whitening.fit(dataset.train_images)
        else:
            checkpoint.load_into(whitening, "whitening")
        whitening.to(device)
        model = self._initialised(model, whitening, checkpoint).to(device)
        tune(model, config.training, self.tell)
        shape = tuple(dataset.train_images.shape[1:])
        self.result = Run(
            config, model, whitening, dataset.class_names, shape, folder, leads=world.leads
        )
        self.batches = Batches(
            dataset.train_images.to(device),
            dataset.train_labels.to(device),
            config.training.batch_size,
            whitening=whitening,
            crop=data.crop,
            flip=data.flip,
            augment=data.augment,
            seed=config.training.seed,
            world=world,
        )
        if checkpoint is None and writer is not None and (text := writer.begin(config, images)):
            self.tell(text, "info")
        self.sinks += self._file_sinks(Progress() if checkpoint is None else checkpoint.progress)
        self.trainer = Trainer(
            model,
            self.batches,
            config.training,
            sinks=self.sinks,
            store=None if folder is None else CheckpointStore(folder / CHECKPOINTS),
            describe=self._description,
            score="validation_log_likelihood" if self.held_out is not None else "objective",
            stop=stop,
        )
        self.scorer = Scorer(
            self.result,
            dataset,
            self.held_out,
            sinks=self.trainer.sinks,
            stop=self.trainer.asked_to_stop,
        )
        self.trainer.evaluate = self.scorer.after_epoch
        if checkpoint is None:
            self.trainer.save()
        else:
            self.trainer.restore(checkpoint)

    def tell(self, text: str, level: Level = "warning") -> None:
        """Say something to the user."""
        Sinks(self.sinks).message(text, level)

    def run(self) -> Run:
        """Train to the end, or until stopped; then the final figures."""
        config, trainer = self.config, self.trainer
        detail = {
            "inducing": "/".join(map(str, config.model.inducing)),
            "ν": f"{config.model.nu}",
            "device": str(self.result.model.device),
            "precision": config.training.precision,
        }
        if self.memory is not None:
            detail["memory"] = str(self.memory)
        if self.folder is not None:
            detail["folder"] = str(self.folder)
        if self.folder is not None and self.world.leads:
            (self.folder / METRICS).unlink(missing_ok=True)  # of a shorter run
        if self.world.size > 1:
            detail["processes"] = str(self.world.size)
        try:
            with trainer.sinks:
                progress = trainer.run(trainer.info(config.data.dataset, **detail))
                self.result.step = progress.step
                if not progress.interrupted and self.world.leads:
                    self.result.metrics = self.scorer.at_the_end(
                        epochs=config.training.epochs,
                        steps=progress.step,
                        seconds=progress.seconds,
                    )
        except ScoringStoppedError:
            pass
        except ProcessLostError as error:
            if self.folder is None:
                raise
            command = f"convdkm resume {in_shell(self.folder)}"
            raise ProcessLostError(f"{error}. Go on with\n  {command}") from error
        if self.folder is not None and self.result.metrics:
            write_json(self.folder / METRICS, self.result.metrics)
        self.result.model.eval()
        return self.result

    def _check(self, checkpoint: Checkpoint | None, model: DeepKernelMachine | None) -> None:
        if checkpoint is not None and checkpoint.value("own_model") and model is None:
            raise InvalidInputError(
                "this run trains a machine of your own; resume it in Python, with"
                " resume(folder, model=…)"
            )

    def _check_unchanged(self, checkpoint: Checkpoint) -> None:
        """Raise if the data is not that of the run."""
        data = self.dataset
        now = {
            "num_data": len(data.train_images),
            "class_names": list(data.class_names),
            "image_shape": list(data.train_images.shape[1:]),
        }
        for name, value in now.items():
            if (before := checkpoint.value(name)) != value:
                raise InvalidInputError(
                    f"the data is not what this run was trained on: {name} is {value}, and was"
                    f" {before}"
                )

    def _initialised(
        self, model: DeepKernelMachine | None, whitening: Any, checkpoint: Checkpoint | None
    ) -> DeepKernelMachine:
        """The machine, with everything that comes from data set from some training images."""
        config, data = self.config, self.dataset
        seed = config.training.seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, 6))
            if model is None:
                channels = data.train_images.shape[1]
                model = build_model(config.model, channels, data.num_classes, dtype_of(config))
            if self.world.leads:
                self._foresee(model, resumed=checkpoint is not None)
            if checkpoint is not None:
                # Now, since some parameters have no shape before, and the optimiser needs them all.
                checkpoint.load_into(model, "model")
                return model
            count = min(config.data.inducing_images, len(data.train_images))
            some = replace(
                data, test_images=data.test_images[:0], test_labels=data.test_labels[:0]
            ).subset(count, seed=seed)
            images = some.train_images
            if config.data.inducing_patches == "whitened":
                device = next(whitening.buffers(), images).device
                images = whitening(images.to(device)).cpu()
            elif config.data.inducing_patches == "standardised":
                images = make_whitening("standardise").fit(data.train_images)(images)
            return model.initialise(images, some.train_labels, seed=seed, max_images=count)

    def _foresee(self, model: DeepKernelMachine, *, resumed: bool) -> None:
        """Estimate what the run takes of memory; a warning where that is too much."""
        images = self.dataset.train_images
        demand = Demand.of(
            self.config,
            self.dataset,
            self.world,
            self.device,
            initial=0 if resumed else min(self.config.data.inducing_images, len(images)),
            held_out=0 if self.held_out is None else self.held_out[0].nbytes,
        )
        self.memory = estimate(model, demand, self.device)
        if self.memory is not None and self.memory.warning is not None:
            self.tell(self.memory.warning)

    def _file_sinks(self, before: Progress) -> list[Sink]:
        if self.folder is None or not self.world.leads:
            return []
        table = CsvSink(
            self.folder, keep_through_step=before.step, ends_epoch=before.ending is None
        )
        sinks: list[Sink] = [table, LogSink(self.folder)]
        sinks += tensorboard_of(self.folder / TENSORBOARD, before.step, Sinks(sinks).message)
        if self.memory is not None and self.memory.warning is not None:
            Sinks(sinks).message(self.memory.warning, "warning")  # it came before the folder
        return sinks

    def _description(self) -> Checkpoint:
        result = self.result
        tensors = {f"whitening.{n}": value for n, value in result.whitening.state_dict().items()}
        return Checkpoint(
            tensors,
            {
                "class_names": list(result.class_names),
                "image_shape": list(result.image_shape),
                "num_data": self.batches.num_data,
                "own_model": self.own_model,
                "config": self.config.model_dump(mode="json"),
            },
        )

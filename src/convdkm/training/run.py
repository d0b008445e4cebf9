"""A trained machine with all that belongs to it: settings, whitening, classes, figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from convdkm.architectures import build_model
from convdkm.checks import check_choice
from convdkm.choices import Storage, ViewsName
from convdkm.config import RunConfig
from convdkm.data import Dataset
from convdkm.data.whitening import Whitening
from convdkm.errors import InvalidInputError
from convdkm.insight.instruments import Reading, readings
from convdkm.model import DeepKernelMachine
from convdkm.predicting.fold import folded_whitening
from convdkm.predicting.predictor import Predictor
from convdkm.prediction import ClassPrediction
from convdkm.storage.files import read_json
from convdkm.training import page
from convdkm.training.batches import INSTRUMENT_IMAGES, chosen_once, seed_of
from convdkm.training.build import dtype_of, unfitted_whitening
from convdkm.training.checkpoint import (
    Checkpoint,
    CheckpointStore,
    Which,
    load_optimiser_tensors,
    read_checkpoint,
    write_checkpoint,
)
from convdkm.training.folder import CHECKPOINTS, METRICS, read_config, same_machine
from convdkm.training.metrics import prediction_metrics
from convdkm.training.optimiser import Optimiser, kinds
from convdkm.training.world import find_device

Watch = Callable[[int, int], None]


@dataclass
class Run:
    """A machine and what is needed to use it.

    Attributes:
        config: the whole configuration.
        model: the machine.
        whitening: fitted to the training images; applied before every prediction.
        class_names: one for each class.
        image_shape: channels, height and width of the images.
        folder: where it is kept; None if only in memory.
        metrics: the final figures; empty before training is over.
        step: steps of training done.
        warning: what was wrong with its checkpoint, if anything was.
        leads: whether this process writes the files, where several train together.
        own_model: whether the machine is one that the configuration does not describe.
    """

    config: RunConfig
    model: DeepKernelMachine
    whitening: Whitening
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]
    folder: Path | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    step: int = 0
    warning: str | None = None
    leads: bool = True
    own_model: bool = False

    @classmethod
    def open(
        cls,
        folder: str | Path,
        checkpoint: Which = "last",
        *,
        device: str | None = None,
        model: DeepKernelMachine | None = None,
    ) -> Run:
        """Read a run from its folder.

        Args:
            folder: of the run.
            checkpoint: ``"last"``, ``"previous"`` or ``"best"``.
            device: where to put the model; as in training, or the CPU if that is absent.
            model: the machine to load into, for runs of a machine of your own.
        """
        folder = Path(folder)
        config, no_settings = read_config(folder)

        def as_trained(found: Checkpoint) -> tuple[Run, str | None]:
            trained, changed = same_machine(config, found)
            return cls.of_checkpoint(trained, found, model), changed

        store = CheckpointStore(folder / CHECKPOINTS)
        (run, changed), warning = store.load(checkpoint, as_trained)
        run.metrics, damage = _read_metrics(folder / METRICS, run.step, checkpoint)
        run.folder = folder
        run.warning = "; ".join(filter(None, (warning, no_settings, changed, damage))) or None
        return run.to(_place(config, device))

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None) -> Run:
        """Read a machine that :meth:`save` wrote; a checkpoint of a run is such a file too.

        Args:
            path: of the file.
            device: as in :meth:`open`.
        """
        checkpoint = read_checkpoint(Path(path))
        config = RunConfig.of(checkpoint.value("config"), str(path))
        run = cls.of_checkpoint(config, checkpoint)
        run.metrics = checkpoint.description.get("metrics", {})
        return run.to(_place(config, device))

    def save(self, path: str | Path, *, storage: Storage = "float32") -> None:
        """Write the machine to one safetensors file, to predict with or to go on from.

        The file holds what :meth:`load` gives back: model, whitening, settings, names of classes,
        figures. It has no state of the optimiser, so training cannot be resumed from it.

        Args:
            path: of the file.
            storage: precision of mixing weights, which are most of a machine. Everything else is
                float32, or float64 if this is.
        """
        check_choice("storage", storage, Storage)
        narrow = {
            f"model.{name}"
            for (name, _), kind in zip(
                self.model.named_parameters(), kinds(self.model).values(), strict=True
            )
            if kind == "mixing"
        }
        most = getattr(torch, storage)
        progress = {"step": self.step}
        checkpoint = self.described(progress=progress, metrics=self.metrics)
        state = self.model.state_dict(prefix="model.")
        whitening = self.whitening.packed(self.image_shape[0])
        state |= {f"whitening.{name}": value for name, value in whitening.items()}
        tensors = {
            name: _narrowed(v, most if name in narrow else torch.promote_types(most, torch.float32))
            for name, v in state.items()
        }
        overflown = [name for name, value in tensors.items() if not bool(value.isfinite().all())]
        if overflown:
            raise InvalidInputError(
                f"{overflown[0]} is not finite in {storage}; bfloat16 has the range of float32"
            )
        whole = Checkpoint(tensors, checkpoint.description)
        Run.of_checkpoint(self.config, whole)  # raises if the settings do not describe the model
        write_checkpoint(Path(path), whole)

    def described(self, **more: Any) -> Checkpoint:
        """What a checkpoint holds besides the state of the model and of training.

        ``more`` is added to the description.
        """
        tensors = {f"whitening.{name}": v for name, v in self.whitening.state_dict().items()}
        description = {
            "class_names": list(self.class_names),
            "image_shape": list(self.image_shape),
            "own_model": self.own_model,
            "config": self.config.model_dump(mode="json"),
            **more,
        }
        return Checkpoint(tensors, description)

    @classmethod
    def of_checkpoint(
        cls, config: RunConfig, checkpoint: Checkpoint, model: DeepKernelMachine | None = None
    ) -> Run:
        """The machine that a checkpoint holds."""
        shape = tuple(checkpoint.value("image_shape"))
        names = tuple(checkpoint.value("class_names"))
        if checkpoint.value("own_model") and model is None:
            raise InvalidInputError(
                "this run trained a machine of your own, which its settings do not describe; pass"
                " one of the same shape: Run.open(folder, model=…)"
            )
        if model is None:
            with checkpoint.fitting():
                model = build_model(config.model, shape[0], len(names), dtype_of(config.training))
        checkpoint.load_into(model, "model")
        whitening = unfitted_whitening(config.training)
        checkpoint.load_into(whitening, "whitening")
        step, own_model = checkpoint.progress.step, checkpoint.value("own_model")
        return cls(config, model.eval(), whitening, names, shape, step=step, own_model=own_model)

    def to(self, device: torch.device) -> Run:
        """Move the machine to a device; returns itself."""
        self.model.to(device)
        self.whitening.to(device)
        return self

    def predict(
        self,
        images: Any,
        *,
        batch_size: int | None = None,
        views: ViewsName | None = None,
        watch: Watch | None = None,
    ) -> ClassPrediction:
        """Predictive distribution of images as they were loaded: not whitened.

        Args:
            images: tensor or array ``(N, channels, height, width)``: bytes, or real numbers on the
                scale of the training images (0 to 1 for files).
            batch_size: how many to work on at a time; as in the evaluation of the run by default.
            views: of every image (:mod:`convdkm.views`); those of its recipe by default.
            watch: told after each time how many are done, and of how many; what it raises stops.
        """
        return self.snapshot(views)(images, batch_size, watch)

    def snapshot(self, views: ViewsName | None = None) -> Callable[..., ClassPrediction]:
        """:meth:`predict` of the machine as it is now, folded once for many calls."""
        return partial(self._predicted, self._folded(self.whitening, views))

    def _predicted(
        self,
        predictor: Predictor,
        images: Any,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> ClassPrediction:
        tensor, shape = as_images(images), tuple(self.image_shape)
        if tensor.shape[1:] != shape:
            raise InvalidInputError(
                f"the model was trained on images of shape {shape}, got {tuple(tensor.shape[1:])}"
            )
        if not len(tensor):
            raise InvalidInputError("there are no images to predict")
        size = batch_size or self.config.training.evaluation_batch
        parts = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self.config.training.seed, 5))
            for part in tensor.split(size):
                parts.append(predictor.predict(part, batch_size=size))
                if watch is not None:
                    watch(sum(len(each.mean) for each in parts), len(tensor))
        joined = type(parts[0]).join(parts)
        if not isinstance(joined, ClassPrediction):
            raise InvalidInputError("this machine does not predict classes")
        return joined

    def predictor(
        self, *, deterministic: bool = False, views: ViewsName | None = None
    ) -> Predictor:
        """The machine folded for prediction, with its whitening: takes images as they were loaded.

        See :meth:`convdkm.DeepKernelMachine.folded` for ``deterministic``, and :meth:`predict` for
        ``views``.
        """
        before = folded_whitening(self.whitening)
        if before is not None:
            before = before.to(self.model.device, self.model.dtype)
        return self._folded(before, views, deterministic=deterministic)

    def _folded(
        self, before: nn.Module | None, views: ViewsName | None, *, deterministic: bool = False
    ) -> Predictor:
        recipe = self.config.training
        predictor = self.model.folded(deterministic=deterministic)
        predictor.before = before
        predictor.sample_shape, predictor.class_names = self.image_shape, self.class_names
        return predictor.with_views(views or recipe.views, recipe.augment)

    def evaluate(
        self,
        images: Any,
        labels: Any,
        *,
        views: ViewsName | None = None,
        watch: Watch | None = None,
    ) -> dict[str, float]:
        """Accuracy, log-likelihood, Brier score, calibration error and more, on labelled images."""
        targets = torch.as_tensor(labels).to(self.model.device)
        return prediction_metrics(self.predict(images, views=views, watch=watch), targets)

    def evaluate_all(self, data: Dataset) -> dict[str, float]:
        """The figures of the training images and of the test images, with their prefixes."""
        figures: dict[str, float] = {}
        for part, images_and_labels in parts_of(data).items():
            figures |= class_metrics(part, self.evaluate(*images_and_labels))
        return figures

    def readings(self, train_images: Tensor | None = None) -> dict[str, Reading]:
        """What the instruments say of every Gram layer, as training notes it in ``layers.csv``.

        Args:
            train_images: the training images as they were loaded, of which a few are used; without
                them there are only the divergences.
        """
        if train_images is None:
            return readings(self.model)
        training = self.config.training
        chosen = train_images[chosen_once(len(train_images), INSTRUMENT_IMAGES, training.seed)]
        whitened = self.whitening(chosen.to(self.model.device))
        size = training.micro_batch or training.batch_size
        return readings(self.model, whitened.split(size))

    def report(
        self, output: str | Path | None = None, *, data: Dataset | None = None, images: int = 16
    ) -> Path:
        """Write a page about the run: one HTML file, which is returned; see ``convdkm report``.

        Args:
            output: the file; ``report.html`` in the run's folder by default.
            data: its images, where the settings do not name them; loaded by default.
            images: how many images of each kind to show.
        """
        return page.writer(self, output, data, images)


def require_fit(
    checkpoint: Checkpoint, config: RunConfig, model: DeepKernelMachine | None = None
) -> Checkpoint:
    """The checkpoint, if it has all that the machine of the settings and its optimiser need."""
    if model is None and checkpoint.value("own_model"):
        return checkpoint  # a machine that the settings do not describe
    run = Run.of_checkpoint(config, checkpoint, model)
    with checkpoint.fitting():
        optimiser = Optimiser(run.model, config.training, num_data=1)  # takes no step
        load_optimiser_tensors(optimiser, checkpoint.part("optimiser"))
    return checkpoint


def as_images(images: Any) -> Tensor:
    """Images as float32 ``(N, channels, height, width)``; bytes become numbers from 0 to 1."""
    tensor = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images))
    if tensor.dtype == torch.uint8:
        tensor = tensor.float() / 255
    return tensor.float() if tensor.dtype != torch.float64 else tensor


def parts_of(data: Dataset) -> dict[str, tuple[Tensor, Tensor]]:
    """Images and labels of a data set that there are figures of, by their prefixes."""
    test = {"test": (data.test_images, data.test_labels)} if data.has_test else {}
    return {**test, "train": (data.train_images, data.train_labels)}


def class_metrics(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    """Figures with a prefix."""
    return {f"{prefix}_{name}": value for name, value in values.items()}


def _narrowed(value: Tensor, most: torch.dtype) -> Tensor:
    """Numbers in a precision, where theirs is higher."""
    wider = value.is_floating_point() and value.dtype.itemsize > most.itemsize
    return value.to(most) if wider else value


def _place(config: RunConfig, device: str | None) -> torch.device:
    """The device that was asked for; else that of training, or the CPU where that is absent."""
    try:
        return find_device(config.training.device if device is None else device)
    except InvalidInputError:
        if device is not None:
            raise
        return torch.device("cpu")


def _read_metrics(path: Path, step: int, which: Which) -> tuple[dict[str, float], str | None]:
    """The final figures of a run, none if it has none yet; and what is wrong with the file."""
    if not path.is_file():
        return {}, None
    try:
        content = read_json(path)
    except ValueError as error:
        return {}, f"{path} is damaged ({error}); the run's final figures are left out"
    if not isinstance(content, dict):
        return {}, f"{path} does not hold the figures of a run; they are left out"
    if which == "last" and content.get("steps", step) != step:
        return {}, (
            f"{path} has the figures after step {content['steps']}, and the checkpoint that was"
            f" read is of step {step}; they are left out"
        )
    return content, None

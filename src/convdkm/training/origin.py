"""What a machine begins with that takes over the body of another: transfer of what was learned.

Taken over are the inducing patches, the mixing weights, the factors of the Gram layers, and the
parameters of kernels, scales and skips: all of ``model.input`` and ``model.body``, but for the
running statistics of normalisers, which are those of the new images, as training makes them; and
the whitening as it was fitted, since inducing patches and Gram matrices are those of images
whitened by it. The likelihood is new, and so is the head, which
starts at its approximate posterior given some training images (:meth:`convdkm.GPHead.condition`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from convdkm.config import RunConfig
from convdkm.data.whitening import Whitening, make_whitening
from convdkm.errors import ConvDKMError, InvalidInputError
from convdkm.model import DeepKernelMachine, in_mode
from convdkm.options import MachineOptions
from convdkm.pretrained import find, located
from convdkm.storage.text import name_text
from convdkm.training.checkpoint import Checkpoint, CheckpointStore, read_checkpoint
from convdkm.training.folder import CHECKPOINTS, read_config, same_machine

Value = TypeVar("Value")
WHITENING = ("whitening", "zca_epsilon")
FREE = (
    "nu",
    "kl",
    "gram_samples",
    "likelihood",
    "expectation",
    "samples",
    "noise",
    "learn_noise",
    "head_parameterisation",
    "head_covariance",
    "head_kl",
)
"""Options of a machine that belong to its head, its likelihood or its objective, not its body."""


@dataclass(frozen=True, eq=False)
class Origin:
    """A machine to begin with: its settings, and its state."""

    source: str
    config: RunConfig
    checkpoint: Checkpoint

    @classmethod
    def open(cls, source: str) -> Origin:
        """Read it.

        Args:
            source: the folder of a run, a file of :meth:`convdkm.Run.save`, or the name of a
                pretrained machine.
        """
        path = located(source)
        if not path.exists():
            find(source)  # the error says which names there are
        if not path.is_dir():
            checkpoint = read_checkpoint(path)
            config = RunConfig.of(checkpoint.value("config"), str(path))
        else:
            settings, _ = read_config(path)
            checkpoint, _ = CheckpointStore(path / CHECKPOINTS).load()
            config, _ = same_machine(settings, checkpoint)
        if checkpoint.value("own_model"):
            raise InvalidInputError(
                f"{source} holds a machine of its maker's own, which its settings do not describe;"
                " load its state_dict into a model of yours instead"
            )
        return cls(source, config, checkpoint)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width of its images."""
        return tuple(self.checkpoint.value("image_shape"))

    def whitening(self, shape: tuple[int, ...]) -> Whitening:
        """Its whitening, if that can be applied to images of a shape."""
        if shape[0] != self.image_shape[0]:
            raise InvalidInputError(
                f"{self.source} was trained on images of {self.image_shape[0]} channels, and these"
                f" have {shape[0]}: --channels {self.image_shape[0]} (channels="
                f"{self.image_shape[0]}) converts them"
            )
        whitening = make_whitening(self.config.training.whitening, self.config.training.zca_epsilon)
        self.checkpoint.load_into(whitening, "whitening")
        self._required(lambda: whitening(torch.zeros(1, *shape)), shape)
        return whitening

    @torch.no_grad()
    def give(self, model: DeepKernelMachine, images: Tensor, labels: Tensor) -> DeepKernelMachine:
        """Give a new machine the input and the body, and a head that knows some images.

        Args:
            model: of the same options.
            images, labels: some of the training images, whitened.

        Returns:
            The model itself.
        """
        new = ("head.", "likelihood.")
        body = {k: v for k, v in self.checkpoint.part("model").items() if not k.startswith(new)}
        own = {k: v for k, v in model.state_dict().items() if k.startswith(new)}
        with self.checkpoint.fitting():
            model.load_state_dict(body | own)
        with in_mode(model, training=False):
            self._required(lambda: model.calibrate(images.split(256)), images.shape[1:])
            gram = model.gram(images)
        targets = model.likelihood.check_targets(labels, len(images))
        outputs = model.head.num_outputs if model.head_kl == "mean" else 1
        model.head.condition(
            gram, lambda each: model.likelihood.expected_log_prob(each, targets), weight=outputs
        )
        return model

    def _required(self, use: Callable[[], Value], shape: Sequence[int]) -> Value:
        """What ``use`` makes of images of a shape; an error of theirs, where they are not its own.

        A whitening that is a matrix, scales by place and linear top layers belong to one size.
        """
        try:
            return use()
        except ConvDKMError as error:
            if tuple(shape) == self.image_shape:
                raise
            own, given = ("×".join(map(str, each)) for each in (self.image_shape[1:], shape[1:]))
            side = self.image_shape[-1]
            raise InvalidInputError(
                f"{self.source} takes images of {own} pixels, and these have {given} ({error}):"
                f" --image-size {side} (image_size={side}) resizes them"
            ) from None


def with_machine_of_origin(config: RunConfig, given: Collection[str] | None = None) -> RunConfig:
    """Settings of a run with the machine and the whitening that it starts from, if it does.

    Options in :data:`FREE` that are given are kept.

    Args:
        config: the settings.
        given: names of the options that the user chose; if None, the settings are whole, and those
            are that differ from the default.

    Raises:
        InvalidInputError: options that were given contradict the machine.
    """
    source = config.training.start_from
    if source is None:
        return config
    origin = Origin.open(source)
    wanted, before = config.flat(), RunConfig().flat()
    if given is None:
        given = {*FREE, *(name for name, value in wanted.items() if value != before[name])}
    free = {name: wanted[name] for name in FREE if name in given}
    theirs = origin.config.flat()
    fixed = {name: theirs[name] for name in (*MachineOptions.model_fields, *WHITENING)} | free
    path = Path(source)
    kept = config.updated(
        {**fixed, "start_from": name_text(path.resolve()) if path.exists() else source}
    )
    wrong = [name for name in fixed if name in given and wanted[name] != kept.flat()[name]]
    if wrong:
        shown = ", ".join(f"{name} is {fixed[name]!r}, not {wanted[name]!r}" for name in wrong)
        raise InvalidInputError(
            f"the machine that training starts from, {source}, has settings of its own: {shown};"
            " leave these options out, or train without start_from (--from)"
        )
    return kept

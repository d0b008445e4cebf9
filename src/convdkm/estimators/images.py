"""Estimators on images: residual convolutional deep kernel machines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convdkm.config import Recipe, RunConfig
from convdkm.errors import InvalidInputError
from convdkm.estimators.base import MachineClassifier, distinct, epochs_of, warn
from convdkm.estimators.shapes import (
    Shape,
    as_integers,
    as_rows,
    axes,
    full_shape,
    shape_and_layout,
)
from convdkm.kernels import Kernel
from convdkm.options import MachineOptions
from convdkm.presets import preset as preset_named
from convdkm.training.batches import Batches
from convdkm.training.build import built, fitted_whitening, initialise, settled
from convdkm.training.origin import with_machine_of_origin
from convdkm.training.world import find_device
from convdkm.views import Views

LEAST_STEPS = 400
"""Where the preset's epochs make fewer steps of few images, there are more epochs."""
SMALL = 16
"""Images and signals below this side are trained by the preset's settings for the digits (8×8)."""
_OF_IMAGES = {"crop": 0, "flip": False, "cutout": 0, "early_scale": 1.0, "views": "one"}
"""Options that do something to images, and their values that do nothing."""


class ConvDKMClassifier(MachineClassifier):
    """Classification of images by a convolutional deep kernel machine.

    A residual machine (:func:`convdkm.resnet`) of a preset, trained by the preset's recipe: the
    machine that ``convdkm train`` would make of the same images, with the same options and the
    integer ``random_state`` as its seed. Parameters that are None are the preset's.

    Images are arrays ``(N, C, H, W)``, ``(N, H, W)`` if grey, ``(N, H, W, C)`` if the last axis
    has 1, 3 or 4 entries and the second has not, or rows ``(N, C·H·W)`` with ``image_shape``.
    Whichever is used to fit, all will do to predict. Rows without ``image_shape`` are signals: one
    channel, and convolutions along the row; they are not augmented.

    Args:
        inducing: inducing points of every stage; no more than the images hold patches.
        blocks: residual blocks of every stage, one number or one for each.
        image_shape: ``(C, H, W)``, ``(H, W)``, or ``(length,)`` for signals; by default that of
            the array.
        nu: how strongly every layer is held to its kernel, from 0 to infinity, where nothing is
            learned but the top layer; one number, or one for each layer.
        kernel: a name (:data:`convdkm.kernels.KERNELS`) or a :class:`convdkm.Kernel`.
        whitening: of the images: ``"standardise"`` brings every channel to mean 0 and variance 1,
            ``"scale"`` to variance 1 alone, ``"zca"``, ``"zca-paper"`` and ``"zca-published"``
            decorrelate the pixels as well, ``"auto"`` is ZCA where it fits, ``"none"``.
        crop: training images are moved at random by up to so many pixels.
        flip: training images are mirrored left and right at random.
        views: of every image at prediction: ``"one"``, ``"flip"`` (with its mirror image),
            ``"shifts"`` or ``"crops"``; see :mod:`convdkm.views`.
        epochs: passes over the images; by default the preset's, or as many as make 400 steps.
        batch_size: images a step.
        learning_rate: Adam's, at its peak.
        precision: of the data path, ``"float32"``, ``"float64"``, ``"bfloat16"`` (of products in
            training alone), or ``"auto"`` for that where the processor computes in it.
        device: ``"cpu"``, ``"cuda"``, …; ``"auto"`` takes what there is.
        preset: whose machine and recipe it is.
        dataset: the data set whose settings in the preset suit the images: ``"mnist"``, say, for
            images that must not be mirrored. By default those of ``"digits"`` for images below 16
            pixels, and the general ones (``"images"``) for others.
        options: any other options of the machine and the recipe, by their names in
            :class:`~convdkm.config.RunConfig`.
        random_state: of everything that is random: an integer makes fits repeatable.
        verbose: whether to show the training.

    Attributes:
        classes_: the labels.
        image_shape_: ``(C, H, W)`` of the images, ``(1, length)`` of signals.
        model_: the machine, a :class:`convdkm.DeepKernelMachine`, which takes whitened images.
        whitening_: the fitted whitening.
        views_: of every image at prediction.
        epochs_: passes over the images that it was trained for.
    """

    inducing: Sequence[int] | None
    image_shape: Sequence[int] | None
    kernel: str | Kernel | None
    crop: int | None
    flip: bool | None
    precision: str | None
    preset: str
    dataset: str | None
    options: Mapping[str, Any] | None

    def __init__(
        self,
        inducing: Sequence[int] | None = None,
        blocks: int | Sequence[int] | None = None,
        *,
        image_shape: Sequence[int] | None = None,
        nu: float | Sequence[float] | None = None,
        kernel: str | Kernel | None = None,
        whitening: str | None = None,
        crop: int | None = None,
        flip: bool | None = None,
        views: str | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        precision: str | None = None,
        device: str | None = None,
        preset: str = "quick",
        dataset: str | None = None,
        options: Mapping[str, Any] | None = None,
        random_state: Any = None,
        verbose: int | bool = False,
    ) -> None:
        self._keep(locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def fit(self, X: Any, y: Any) -> ConvDKMClassifier:
        """Train a new machine on images and their labels ``(N,)``."""
        given = None if self.image_shape is None else full_shape(self.image_shape)
        rows, shape = self._rows(X, given)
        rows, y = self._validated(rows, y, dtype=self._dtype)
        self.image_shape_ = (1, rows.shape[1]) if shape is None else shape
        if given is not None and rows.shape[1] != math.prod(given):
            raise InvalidInputError(
                f"image_shape {given} has {math.prod(given)} pixels, but X has {rows.shape[1]}"
                " features"
            )
        channels, *space = self.image_shape_
        config = self._config(space, len(rows))
        labels, images = self._encoded(y), self._as_images(rows)
        recipe = settled(config.training, images, labels, warn)
        device = find_device(recipe.device)
        self.views_ = Views(recipe.views, stage=recipe.augment)
        self.whitening_ = fitted_whitening(recipe, images, warn).to(device)
        first = distinct(rows)
        options = config.model
        if recipe.start_from is None:
            options = _within(options, min(len(first), recipe.inducing_images), space)
        kernel = self.kernel if isinstance(self.kernel, Kernel) else None
        model = built(options, recipe, channels, len(self.classes_), kernel=kernel, ndim=len(space))
        initialise(model, recipe, images[first], labels[first], self.whitening_)
        batches = Batches.of(
            recipe, images.to(device), labels.to(device), whitening=self.whitening_
        )
        self._train(model.to(device), batches, recipe)
        return self

    def _config(self, space: Sequence[int], count: int) -> RunConfig:
        """The preset's settings for ``count`` images, with the given parameters in their place."""
        if self.inducing is not None:
            as_integers("inducing", self.inducing)
        options = MachineOptions.model_fields | Recipe.model_fields
        given = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name in options and value is not None and not isinstance(value, Kernel)
        }
        given = {**(self.options or {}), **given}
        if len(space) == 1:
            for name, none in _OF_IMAGES.items():
                if given.setdefault(name, none) != none:
                    raise InvalidInputError(f"{name} is for images; these rows are signals")
        seed = self.random_state
        given["seed"] = seed if isinstance(seed, Integral) else self._drawn_seed()
        dataset = self.dataset or ("digits" if min(space) < SMALL else "images")
        config = with_machine_of_origin(preset_named(self.preset).config(dataset, **given), given)
        if "epochs" in given:
            return config
        enough = epochs_of(LEAST_STEPS, count, config.training.batch_size)
        return config.updated({"epochs": max(config.training.epochs, enough)})

    def _rows(self, X: Any, expected: Shape | None) -> tuple[Any, Shape | None]:
        """Images as rows, and their shape; what has two axes or fewer stays as it is."""
        if axes(X) <= 2:
            return X, expected
        shape, channels_last = shape_and_layout(np.shape(X)[1:], expected)
        return as_rows(X, channels_last), shape

    def _inputs(self, X: Any) -> Tensor:
        rows, _ = self._rows(X, self.image_shape_)
        rows = self._validated(rows, dtype=self._dtype, reset=False)
        return self._as_images(rows)

    def _views(self) -> Views:
        views = getattr(self, "views_", Views())  # which earlier versions had not
        return replace(views, whitening=self.whitening_)

    def _as_images(self, rows: NDArray[Any]) -> Tensor:
        return torch.tensor(rows.reshape(-1, *self.image_shape_))

    @property
    def _dtype(self) -> Any:
        return np.float64 if self.precision == "float64" else np.float32


def _within(options: MachineOptions, images: int, space: Sequence[int]) -> MachineOptions:
    """The same, with no more inducing points than ``images`` images have places at every stage."""
    inducing, stride = [], options.input_stride
    for points, _, after in options.stages:
        stride *= after
        inducing.append(min(points, images * math.prod(-(-size // stride) for size in space)))
    return options.model_copy(update={"inducing": tuple(inducing)})

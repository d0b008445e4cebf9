"""Estimators on images: residual convolutional deep kernel machines."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from convdkm.architectures import resnet
from convdkm.data.whitening import chosen_whitening, make_whitening
from convdkm.errors import InvalidInputError
from convdkm.estimators.base import INITIALISING_SAMPLES, MachineClassifier
from convdkm.estimators.compat import validate_data
from convdkm.estimators.options import as_dtype, as_integer, as_integers, as_kernel, as_nu
from convdkm.estimators.shapes import Shape, as_rows, axes, full_shape, shape_and_layout
from convdkm.kernels import Kernel
from convdkm.model import DeepKernelMachine


class ConvDKMClassifier(MachineClassifier):
    """Classification of images by a convolutional deep kernel machine.

    A small residual machine (:func:`convdkm.resnet`) by the recipe of the preset ``quick``.

    Images are arrays ``(N, C, H, W)``, ``(N, H, W)`` if grey, ``(N, H, W, C)`` if the last axis
    has 1, 3 or 4 entries and the second has not, or rows ``(N, C·H·W)`` with ``image_shape``.
    Whichever is used to fit, all will do to predict. Rows without ``image_shape`` are signals: one
    channel, and convolutions along the row.

    Args:
        inducing: inducing points of every stage; no more than the images hold patches.
        blocks: residual blocks of every stage, one number or one for each.
        image_shape: ``(C, H, W)``, ``(H, W)``, or ``(length,)`` for signals; by default that of
            the array.
        nu: how strongly every layer is held to its kernel, from 0 to infinity, where nothing is
            learned but the top layer; one number, or one for each layer.
        kernel: ``"arc-cosine"``, ``"squared-exponential"``, ``"matern"``, ``"rational-quadratic"``,
            ``"normalised-gaussian"``, ``"normalised-polynomial"`` or a :class:`convdkm.Kernel`.
        whitening: of the images: ``"standardise"`` brings every channel to mean 0 and variance 1,
            ``"zca"`` and ``"zca-paper"`` decorrelate the pixels as well, ``"auto"`` is ZCA where it
            fits, ``"none"``.
        crop: training images are moved at random by up to so many pixels.
        flip: training images are mirrored left and right at random.
        epochs: passes over the images; by default 10, or as many as make 400 steps.
        batch_size: images a step.
        learning_rate: Adam's, at its peak.
        precision: of the data path, ``"float32"`` or ``"float64"``.
        device: ``"cpu"``, ``"cuda"``, …; ``"auto"`` takes what there is.
        random_state: of everything that is random: an integer makes fits repeatable.
        verbose: whether to show the training.

    Attributes:
        classes_: the labels.
        image_shape_: ``(C, H, W)`` of the images, ``(1, length)`` of signals.
        model_: the machine, a :class:`convdkm.DeepKernelMachine`, which takes whitened images.
        whitening_: the fitted whitening.
        epochs_: passes over the images that it was trained for.
    """

    LEAST_STEPS = 400
    LEAST_EPOCHS = 10

    def __init__(
        self,
        inducing: Sequence[int] = (16, 32, 64),
        blocks: int | Sequence[int] = 1,
        *,
        image_shape: Sequence[int] | None = None,
        nu: float | Sequence[float] = 0.1,
        kernel: str | Kernel = "arc-cosine",
        whitening: str = "standardise",
        crop: int = 0,
        flip: bool = False,
        epochs: int | None = None,
        batch_size: int = 64,
        learning_rate: float = 0.1,
        precision: str = "float32",
        device: str = "auto",
        random_state: Any = None,
        verbose: int | bool = False,
    ) -> None:
        self.inducing = inducing
        self.blocks = blocks
        self.image_shape = image_shape
        self.nu = nu
        self.kernel = kernel
        self.whitening = whitening
        self.crop = crop
        self.flip = flip
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.precision = precision
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def fit(self, X: Any, y: Any) -> ConvDKMClassifier:
        """Train a new machine on images and their labels ``(N,)``."""
        given = None if self.image_shape is None else full_shape(self.image_shape)
        rows, shape = self._rows(X, given)
        rows, y = validate_data(self, rows, y, dtype=self._numpy_dtype)
        self.image_shape_ = (1, rows.shape[1]) if shape is None else shape
        if given is not None and rows.shape[1] != math.prod(given):
            raise InvalidInputError(
                f"image_shape {given} has {math.prod(given)} pixels, but X has {rows.shape[1]}"
                " features"
            )
        labels = self._encoded(y)
        images = self._as_images(rows)
        kind = chosen_whitening(
            self.whitening,  # type: ignore[arg-type]
            len(images),
            images.shape[1:],
            partial(warnings.warn, stacklevel=2),
        )
        self.whitening_ = make_whitening(kind).fit(images)
        _, first = np.unique(rows, axis=0, return_index=True)
        crop, flip = as_integer("crop", self.crop, least=0), bool(self.flip)
        if len(self.image_shape_) == 2 and (crop or flip):
            raise InvalidInputError("crop and flip are for images; these rows are signals")
        self._train(
            self._builder(len(first)),
            self.whitening_(images),
            labels,
            distinct=torch.as_tensor(np.sort(first)),
            crop=crop,
            flip=flip,
        )
        return self

    def _builder(self, distinct: int) -> Any:
        channels, *space = self.image_shape_
        inducing = as_integers("inducing", self.inducing)
        blocks = (
            as_integers("blocks", self.blocks)
            if isinstance(self.blocks, Sequence)
            else (as_integer("blocks", self.blocks),) * len(inducing)
        )
        images = min(distinct, INITIALISING_SAMPLES)
        enough = [
            min(points, images * math.prod(-(-size // 2**stage) for size in space))
            for stage, points in enumerate(inducing)
        ]
        nu = as_nu(self.nu)

        def build(dtype: torch.dtype) -> DeepKernelMachine:
            return resnet(
                channels,
                len(self.classes_),
                enough,
                blocks,
                nu=nu,
                kernel=as_kernel(self.kernel),
                centre=True,
                mixing="patches",
                gram_parameterisation="whitened",
                gram_scale=100.0,
                head_parameterisation="whitened",
                ndim=len(space),
                dtype=dtype,
            )

        return build

    def _rows(self, X: Any, expected: Shape | None) -> tuple[Any, Shape | None]:
        """Images as rows, and their shape; what has two axes or fewer stays as it is."""
        if axes(X) <= 2:
            return X, expected
        shape, channels_last = shape_and_layout(np.shape(X)[1:], expected)
        return as_rows(X, channels_last), shape

    def _inputs(self, X: Any) -> Tensor:
        rows, _ = self._rows(X, self.image_shape_)
        rows = validate_data(self, rows, dtype=self._numpy_dtype, reset=False)
        whitened: Tensor = self.whitening_(self._as_images(rows))
        return whitened

    def _as_images(self, rows: NDArray[Any]) -> Tensor:
        return torch.tensor(rows.reshape(-1, *self.image_shape_))

    @property
    def _numpy_dtype(self) -> Any:
        return np.float64 if as_dtype(self.precision) == torch.float64 else np.float32

"""The interface of a method that can be compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from convdkm.errors import InvalidInputError, NotInitialisedError

Self = TypeVar("Self", bound="Baseline")
Part = TypeVar("Part")
Tell = Callable[[str], None]


class Baseline(ABC):
    """A classifier of images with ``fit`` and ``predict``.

    Images are floating-point ``(N, channels, height, width)``, already whitened; labels are
    integers from 0.

    Attributes:
        minutes: time limit of ``fit``, for methods that can stop early; None for no limit.
        tell: called with lines of text that show the progress.
        cut_short: whether the time limit ended the last ``fit`` early.
    """

    minutes: float | None = None
    cut_short: bool = False
    tell: Tell = staticmethod(lambda _: None)

    @abstractmethod
    def fit(self: Self, images: Tensor, labels: Tensor) -> Self:
        """Learn from images and their labels; returns the method itself."""

    @abstractmethod
    def scores(self, images: Tensor) -> Tensor:
        """A score for each image and class, ``(N, classes)``; the largest is the prediction.

        Scores are log-probabilities, unless a method says otherwise.
        """

    def predict(self, images: Tensor) -> Tensor:
        """The class of each image."""
        return self.scores(images).argmax(1)

    def probabilities(self, images: Tensor) -> Tensor | None:
        """The probability of each class, ``(N, classes)``; None where a method has none."""
        return self.scores(images).exp()

    @property
    @abstractmethod
    def parameters(self) -> int:
        """How many parameters are learned."""

    def flops(self, images: Tensor, labels: Tensor) -> float | None:
        """Floating-point operations of the steps of ``fit`` on these images; None if unknown."""
        return None

    def foresee(self, images: Tensor, labels: Tensor) -> None:
        """Raise :class:`InvalidInputError`, before any work, if there is not enough memory."""
        check_training_set(images, labels)

    def expected_seconds(self, images: Tensor, predicted: int) -> tuple[float, float] | None:
        """Estimated seconds of ``fit`` and of predicting so many images; None if unknown."""
        return None

    def require_fitted(self, part: Part | None) -> Part:
        """A part of the method that only ``fit`` sets; an error if it is None."""
        if part is None:
            raise NotInitialisedError(f"{type(self).__name__} has to be fitted first: call fit")
        return part


def check_training_set(images: Tensor, labels: Tensor) -> int:
    """The number of classes of a training set; an error if images and labels do not match."""
    if images.ndim != 4 or not images.is_floating_point():
        raise InvalidInputError(
            "images must be floating-point, (N, channels, height, width), got"
            f" {tuple(images.shape)} of {images.dtype}"
        )
    if labels.ndim != 1 or labels.is_floating_point() or len(labels) != len(images):
        raise InvalidInputError(
            f"labels must be {len(images)} integers, got {tuple(labels.shape)} of {labels.dtype}"
        )
    if not len(labels) or int(labels.min()) < 0:
        raise InvalidInputError("labels must be integers from 0, at least one")
    return int(labels.max()) + 1


def check_like(images: Tensor, shape: Sequence[int]) -> None:
    """Raise unless images to predict are floating-point ``(N, *shape)``, at least one."""
    right = images.ndim == 4 and tuple(images.shape[1:]) == tuple(shape) and len(images)
    if not right or not images.is_floating_point():
        wanted = ", ".join(map(str, ("N", *shape)))
        raise InvalidInputError(
            f"images to predict must be floating-point ({wanted}) as those of fit, at least one;"
            f" got {tuple(images.shape)} of {images.dtype}"
        )

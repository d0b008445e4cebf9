"""What a method has to do to be compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from convdkm.errors import InvalidInputError

Self = TypeVar("Self", bound="Baseline")
Tell = Callable[[str], None]


class Baseline(ABC):
    """A classifier of images, as ``fit`` and ``predict``.

    Images are ``(N, channels, height, width)``, floating-point and already whitened or scaled as
    the comparison asks; labels are integers from 0.

    Attributes:
        minutes: how long ``fit`` may take where a method can stop early; None for no limit.
        tell: called with a line of text now and then, to show how far it is.
        cut_short: whether the last ``fit`` learned less than it would have without that limit.
    """

    minutes: float | None = None
    cut_short: bool = False
    tell: Tell = staticmethod(lambda _: None)

    @abstractmethod
    def fit(self: Self, images: Tensor, labels: Tensor) -> Self:
        """Learn from images and their classes; returns itself."""

    @abstractmethod
    def scores(self, images: Tensor) -> Tensor:
        """A number for each image and class, ``(N, classes)``; the largest is the prediction."""

    def predict(self, images: Tensor) -> Tensor:
        """The class of each image."""
        return self.scores(images).argmax(1)

    def probabilities(self, images: Tensor) -> Tensor | None:
        """The probability of each class, ``(N, classes)``; None where a method has none."""
        return None

    @property
    @abstractmethod
    def parameters(self) -> int:
        """How many numbers were learned."""

    def foresee(self, images: Tensor, labels: Tensor) -> None:
        """Raise, before any work, if this is more than the machine can hold.

        Raises:
            InvalidInputError: with the figure, and what would fit.
        """
        check_training_set(images, labels)

    def expected_seconds(self, images: Tensor, predicted: int) -> tuple[float, float] | None:
        """Seconds that ``fit`` and the prediction of so many images will take, where a method can
        tell beforehand; None where it cannot.
        """
        del images, predicted
        return None


def check_training_set(images: Tensor, labels: Tensor) -> int:
    """The number of classes of a training set; an error if it is none."""
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

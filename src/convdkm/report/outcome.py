"""Predictions beside the truth: calibration, confusions, and the images worth a look."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from convdkm.prediction import ClassPrediction
from convdkm.training.metrics import Reliability, prediction_metrics, reliability


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a machine said of labelled images.

    Attributes:
        images: as they were loaded, ``(N, channels, height, width)``.
        labels: their classes.
        prediction: what was predicted, on the CPU.
        class_names: one for each class.
    """

    images: Tensor
    labels: Tensor
    prediction: ClassPrediction
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Accuracy, log-likelihood, Brier score, calibration error and more."""
        return prediction_metrics(self.prediction, self.labels)

    @cached_property
    def reliability(self) -> Reliability:
        """Confidence and accuracy in 15 bins."""
        return reliability(self.prediction, self.labels)

    @property
    def overconfidence(self) -> float:
        """The mean probability of the predicted classes minus the accuracy."""
        return float(self.prediction.probs.amax(1).double().mean()) - self.metrics["accuracy"]

    @cached_property
    def confusion(self) -> Tensor:
        """Images of every class (rows) that were taken for every class (columns)."""
        classes = len(self.class_names)
        pairs = self.labels * classes + self.prediction.labels
        return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes)

    @property
    def wrong(self) -> Tensor:
        """Whether a prediction is wrong, ``(N,)``."""
        return self.prediction.labels != self.labels

    def most_uncertain(self, count: int) -> list[int]:
        """Images whose predictions have the largest entropy, the largest first."""
        order = torch.argsort(self.prediction.entropy, descending=True, stable=True)
        return order[:count].tolist()

    def confidently_wrong(self, count: int) -> list[int]:
        """Wrong predictions, the most confident first."""
        wrong = self.wrong.nonzero().flatten()
        confidence = self.prediction.probs.amax(1)[wrong]
        return wrong[torch.argsort(confidence, descending=True, stable=True)][:count].tolist()

    def frequent_confusions(self, count: int) -> list[tuple[int, int, int]]:
        """``(class, taken for, times)``, the most frequent first."""
        wrong = self.confusion.clone().fill_diagonal_(0)
        order = torch.argsort(wrong.flatten(), descending=True, stable=True)[:count].tolist()
        classes = len(self.class_names)
        found = [(k // classes, k % classes, int(wrong.flatten()[k])) for k in order]
        return [each for each in found if each[2]]


def wilson(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share, from ``right`` out of ``count``."""
    from scipy.stats import binomtest

    interval = binomtest(right, count).proportion_ci(0.95, method="wilson")
    return interval.low, interval.high

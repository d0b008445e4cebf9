"""How good predictions are: the figures that training reports."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from convdkm.checks import check_positive
from convdkm.errors import InvalidInputError
from convdkm.prediction import ClassPrediction, Prediction, RealPrediction

CALIBRATION_BINS = 15


@dataclass(frozen=True, eq=False)
class Reliability:
    r"""Confidence and accuracy in equal-width bins of confidence (Guo et al., 2017).

    Bin m of M holds the images whose most probable class has a probability in
    :math:`((m-1)/M, m/M]`.

    Attributes:
        count: images in every bin, ``(bins,)``.
        confidence: mean probability of the predicted class, ``(bins,)``; NaN in an empty bin.
        accuracy: share of right predictions, ``(bins,)``; NaN in an empty bin.
    """

    count: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def edges(self) -> Tensor:
        """Bounds of the bins, ``(bins + 1,)``."""
        return _edges(len(self.count))

    @property
    def expected_calibration_error(self) -> float:
        r""":math:`\sum_m \tfrac{n_m}{N} |\text{accuracy}_m - \text{confidence}_m|`."""
        filled = self.count > 0
        gaps = (self.accuracy - self.confidence)[filled].abs()
        return float((self.count[filled] * gaps).sum() / self.count.sum())


def reliability(
    prediction: ClassPrediction, labels: Tensor, bins: int = CALIBRATION_BINS
) -> Reliability:
    """Confidence against accuracy, bin by bin: the content of a reliability diagram."""
    check_positive(bins=bins)
    _require_some(prediction)
    labels = labels.to(prediction.log_probs.device)
    prediction.log_prob(labels)  # for its checks of the labels
    # On the CPU, where the sums below are the same at every call.
    confidence = prediction.log_probs.double().amax(1).exp().cpu()
    correct = (prediction.labels == labels).double().cpu()
    index = torch.bucketize(confidence, _edges(bins)[1:-1])
    count = torch.bincount(index, minlength=bins)

    def mean_by_bin(values: Tensor) -> Tensor:
        return torch.bincount(index, weights=values, minlength=bins) / count

    return Reliability(count, mean_by_bin(confidence), mean_by_bin(correct))


def classification_metrics(prediction: ClassPrediction, labels: Tensor) -> dict[str, float]:
    r"""Means over images, in float64 whatever the precision of the prediction.

    ``accuracy``; ``log_likelihood`` :math:`\log p_y`; ``brier`` :math:`\sum_c(p_c-1[y=c])^2`;
    ``ece``, the expected calibration error with 15 bins; ``entropy`` :math:`-\sum_c p_c\log p_c`;
    and ``mutual_information`` where the likelihood defines it.
    """
    _require_some(prediction)
    labels = labels.to(prediction.log_probs.device)
    log_likelihood = prediction.log_prob(labels).double().mean()
    probs = prediction.log_probs.double().exp()
    truth = torch.zeros_like(probs).scatter(1, labels.long()[:, None], 1.0)
    entropy = torch.special.entr(probs).sum(1)
    metrics = {
        "accuracy": float(prediction.accuracy(labels)),
        "log_likelihood": float(log_likelihood),
        "brier": float((probs - truth).square().sum(1).mean()),
        "ece": reliability(prediction, labels).expected_calibration_error,
        "entropy": float(entropy.mean()),
    }
    if prediction.expected_entropy is not None:
        information = (entropy - prediction.expected_entropy.double()).clamp(min=0)
        metrics["mutual_information"] = float(information.mean())
    return metrics


def regression_metrics(prediction: RealPrediction, targets: Tensor) -> dict[str, float]:
    """``rmse`` and ``mae`` over all outputs, and the mean ``log_likelihood`` of an input."""
    _require_some(prediction)
    mean = prediction.mean.double()
    if len(targets) == len(mean) and targets.numel() != mean.numel():
        raise InvalidInputError(
            f"targets must have the shape {tuple(mean.shape)}, got {tuple(targets.shape)}"
        )
    targets = targets.to(mean.device)
    log_likelihood = prediction.log_prob(targets).double().mean()
    errors = targets.double().reshape(mean.shape) - mean
    return {
        "rmse": float(errors.square().mean().sqrt()),
        "mae": float(errors.abs().mean()),
        "log_likelihood": float(log_likelihood),
    }


def prediction_metrics(prediction: Prediction, targets: Tensor) -> dict[str, float]:
    """The metrics of classification or of regression, by the kind of the prediction."""
    if isinstance(prediction, ClassPrediction):
        return classification_metrics(prediction, targets)
    if isinstance(prediction, RealPrediction):
        return regression_metrics(prediction, targets)
    raise InvalidInputError(f"there are no metrics for a {type(prediction).__name__}")


def _edges(bins: int) -> Tensor:
    return torch.arange(bins + 1, dtype=torch.float64) / bins


def _require_some(prediction: Prediction) -> None:
    if not len(prediction):
        raise InvalidInputError("metrics need at least one prediction")

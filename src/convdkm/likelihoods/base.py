"""What a likelihood is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from convdkm.errors import InvalidInputError
from convdkm.head import Marginals
from convdkm.layers.base import keep_dtype
from convdkm.prediction import Prediction


class Likelihood(nn.Module):
    """Base class: how targets depend on the top-layer functions.

    A subclass defines how to check targets, the expected log-likelihood that training needs, and
    the predictive distribution.

    Attributes:
        num_outputs: number of top-layer functions.
        obstacle: why it cannot be part of a predictor's file; None if it can.
    """

    num_outputs: int
    obstacle: str | None = None

    def check_targets(self, targets: Tensor, count: int) -> Tensor:
        """Raise unless there are ``count`` valid targets; return them in their canonical form."""
        raise NotImplementedError(f"{type(self).__name__} must define check_targets")

    def expected_log_prob(self, marginals: Marginals, targets: Tensor) -> Tensor:
        """:math:`E_Q[log P(y | f)]` of every image, ``(N,)``."""
        raise NotImplementedError(f"{type(self).__name__} must define expected_log_prob")

    def predict(self, marginals: Marginals) -> Prediction:
        """The predictive distribution of every image."""
        raise NotImplementedError(f"{type(self).__name__} must define predict")

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return super()._apply(keep_dtype(fn), recurse)


def check_labels(labels: Tensor, num_classes: int, count: int) -> Tensor:
    """Raise unless ``labels`` are ``count`` integers in ``[0, num_classes)``."""
    if not isinstance(labels, Tensor):
        raise InvalidInputError(f"labels must be a torch.Tensor, got {type(labels).__name__}")
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise InvalidInputError(f"labels must be integers, got {labels.dtype}")
    if labels.shape != (count,):
        raise InvalidInputError(
            f"{count} images need labels of shape ({count},), got {tuple(labels.shape)}"
        )
    if not labels.is_meta and count:
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= num_classes:
            raise InvalidInputError(
                f"labels must lie between 0 and {num_classes - 1} ({num_classes} classes), but"
                f" range from {low} to {high}"
            )
    return labels.long()

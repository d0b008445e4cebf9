"""Figures of predictions of the test images."""

from __future__ import annotations

import torch
from torch import Tensor

from convdkm.errors import NumericalError
from convdkm.prediction import ClassPrediction
from convdkm.training.metrics import classification_metrics

SHOWN = ("accuracy", "log_likelihood", "ece", "brier")


def figures(
    probabilities: Tensor | None, predicted: Tensor | None, labels: Tensor
) -> dict[str, float]:
    """Of predictions of labels: by probabilities, or where there are none the accuracy alone.

    Raises:
        NumericalError: probabilities are not finite.
    """
    if probabilities is None:
        assert predicted is not None
        return {"accuracy": float((predicted.cpu() == labels).double().mean())}
    values = probabilities.detach().double().cpu()
    bad = int((~values.isfinite()).any(1).sum())
    if bad:
        raise NumericalError(f"the probabilities of {bad} of {len(values)} images are not finite")
    log_probs = values.clamp(min=torch.finfo(values.dtype).tiny).log()
    nothing = torch.zeros_like(log_probs)
    found = classification_metrics(ClassPrediction(nothing, nothing, log_probs, None), labels)
    return {name: found[name] for name in SHOWN}

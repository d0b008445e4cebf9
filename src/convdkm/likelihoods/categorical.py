"""Classes, by the softmax of the functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from convdkm.checks import check_choice, check_positive
from convdkm.choices import Expectation
from convdkm.errors import InvalidInputError
from convdkm.head import Marginals
from convdkm.likelihoods.base import Likelihood, check_labels
from convdkm.likelihoods.softmax import NODES, NormalSoftmax
from convdkm.numerics import safe_sqrt
from convdkm.ops.synchronise import batch_noise
from convdkm.prediction import ClassPrediction

if TYPE_CHECKING:
    from jaxtyping import Float, Int

SAMPLES = "draws random samples; model.folded(deterministic=True) takes an integral in their place"


class Categorical(Likelihood):
    r"""Softmax classification (appendix D.2.2).

    .. math:: E_Q[\log P(y|f)] = E_Q[f_y] - E_Q\left[\log\sum_\lambda e^{f_\lambda}\right]

    The second expectation has no closed form.

    Args:
        num_classes: number of classes.
        expectation: ``"nodes"`` (default): an integral over one variable, whose nodes follow the
            means and variances of an image (:mod:`convdkm.likelihoods.softmax`); deterministic, and
            no image depends on another. ``"monte-carlo"`` (the paper): fresh random samples at
            every call.
        samples: their number; by default 64 nodes (and never fewer than 48) or 1000 samples.
    """

    softmax: NormalSoftmax | None

    def __init__(
        self, num_classes: int, *, expectation: Expectation = "nodes", samples: int | None = None
    ) -> None:
        super().__init__()
        check_positive(num_classes=num_classes)
        if num_classes < 2:
            raise InvalidInputError(f"classification needs at least 2 classes, got {num_classes}")
        check_choice("expectation", expectation, Expectation)
        if samples is None:
            samples = NODES if expectation == "nodes" else 1000
        check_positive(samples=samples)
        self.num_outputs, self.expectation, self.samples = num_classes, expectation, samples
        self.softmax = NormalSoftmax(self.samples) if expectation == "nodes" else None
        self.obstacle = SAMPLES if self.softmax is None else None

    def functions(self, marginals: Marginals) -> Float[Tensor, "N samples classes"]:
        """Random values of the top-layer functions, ``(N, samples, classes)``."""
        mean = marginals.mean.unsqueeze(1)
        noise = batch_noise((len(mean), self.samples, self.num_outputs), mean)
        return mean + safe_sqrt(marginals.variance).unsqueeze(1) * noise

    def check_targets(self, targets: Tensor, count: int) -> Tensor:
        return check_labels(targets, self.num_outputs, count)

    def expected_log_prob(
        self, marginals: Marginals, targets: Int[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        if self.softmax is not None:
            normaliser = self.softmax.log_sum_exp(marginals.mean, marginals.variance)
        else:
            normaliser = torch.logsumexp(self.functions(marginals), 2).mean(1)
        return marginals.mean.gather(1, targets[:, None])[:, 0] - normaliser

    def predict(self, marginals: Marginals) -> ClassPrediction:
        if self.softmax is not None:
            prediction = self.softmax(marginals.mean, safe_sqrt(marginals.variance))
            return ClassPrediction(marginals.mean, marginals.variance, *prediction)
        log_probs = torch.log_softmax(self.functions(marginals), 2)
        inner = -(log_probs.exp() * log_probs).sum(2).mean(1)
        mixed = torch.logsumexp(log_probs, 1) - math.log(log_probs.shape[1])
        return ClassPrediction(marginals.mean, marginals.variance, mixed, inner)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state_dict.pop(f"{prefix}nodes", None)  # nodes were fixed numbers once, and kept
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{self.num_outputs}, expectation={self.expectation!r}, samples={self.samples}"

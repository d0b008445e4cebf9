"""Targets with Gaussian noise, and classes as one-hot vectors with noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from convdkm.checks import check_choice, check_positive, check_positive_number
from convdkm.choices import GaussianExpectation
from convdkm.errors import InvalidInputError
from convdkm.gram import INDUCING_DTYPE
from convdkm.head import Marginals
from convdkm.likelihoods.base import Likelihood, check_labels
from convdkm.numerics import safe_sqrt
from convdkm.ops.synchronise import batch_noise
from convdkm.prediction import ClassPrediction, Prediction, RealPrediction

if TYPE_CHECKING:
    from jaxtyping import Float


class Gaussian(Likelihood):
    r"""Gaussian noise (appendix D.2.1), for regression, and for classification on one-hot targets.

    .. math:: E_Q[\log P(y|f)] = -\tfrac{N}{2}\log 2\pi\sigma^2
              - \tfrac1{2\sigma^2}\sum_\lambda\left\{(y_\lambda - E[f_\lambda])^2
              + \mathrm{Var}[f_\lambda]\right\}

    Args:
        num_outputs: number of regression targets, or of classes.
        noise: :math:`\sigma^2`, the variance of the noise, to start with.
        learn_noise: learn it (through its logarithm).
        classes: the targets are class labels, read as one-hot vectors. Predictions are then
            distributions over the classes, by Bayes' rule among the one-hot vectors.
        expectation: ``"closed-form"`` or (as in the published runs) ``"monte-carlo"``.
        samples: number of Monte-Carlo samples.
    """

    log_noise: Tensor

    def __init__(
        self,
        num_outputs: int,
        *,
        noise: float = 1.0,
        learn_noise: bool = True,
        classes: bool = False,
        expectation: GaussianExpectation = "closed-form",
        samples: int = 1000,
    ) -> None:
        super().__init__()
        check_positive(num_outputs=num_outputs, samples=samples)
        check_positive_number(noise=noise)
        check_choice("expectation", expectation, GaussianExpectation)
        self.num_outputs, self.classes = num_outputs, classes
        self.expectation, self.samples = expectation, samples
        log_noise = torch.tensor(float(noise), dtype=INDUCING_DTYPE).log()
        if learn_noise:
            self.log_noise = nn.Parameter(log_noise)
        else:
            self.register_buffer("log_noise", log_noise)

    @property
    def noise(self) -> Tensor:
        """:math:`\\sigma^2`."""
        return self.log_noise.exp()

    def check_targets(self, targets: Tensor, count: int) -> Tensor:
        if self.classes:
            labels = check_labels(targets, self.num_outputs, count)
            return nn.functional.one_hot(labels, self.num_outputs).to(INDUCING_DTYPE)
        if not isinstance(targets, Tensor):
            raise InvalidInputError(f"targets must be a torch.Tensor, got {type(targets).__name__}")
        if not targets.dtype.is_floating_point:
            raise InvalidInputError(
                f"regression targets must be floating-point, got {targets.dtype}; for class labels"
                " use Categorical(...) or Gaussian(..., classes=True)"
            )
        if targets.ndim == 1 and self.num_outputs == 1:
            targets = targets.unsqueeze(1)
        if targets.shape != (count, self.num_outputs):
            raise InvalidInputError(
                f"{count} inputs need targets of shape ({count}, {self.num_outputs}), got"
                f" {tuple(targets.shape)}"
            )
        if not targets.is_meta and not bool(torch.isfinite(targets).all()):
            raise InvalidInputError("some targets are NaN or infinite")
        return targets

    def expected_log_prob(
        self, marginals: Marginals, targets: Float[Tensor, "N outputs"]
    ) -> Float[Tensor, " N"]:
        mean, variance = marginals.mean, marginals.variance
        targets, noise = targets.to(mean.dtype), self.noise.to(mean.dtype)
        if self.expectation == "closed-form":
            squares = (targets - mean).square() + variance
        else:
            draws = batch_noise((self.samples, *mean.shape), mean, images=1)
            squares = (targets - mean - safe_sqrt(variance) * draws).square().mean(0)
        constant = self.num_outputs * torch.log(2 * math.pi * noise)
        return -0.5 * (constant + squares.sum(1) / noise)

    def predict(self, marginals: Marginals) -> Prediction:
        mean = marginals.mean
        noise = self.noise.to(mean.dtype)
        total = (marginals.variance + noise).expand_as(mean)
        if not self.classes:
            return RealPrediction(mean, marginals.variance.expand_as(mean), total)
        codes = torch.eye(self.num_outputs, dtype=mean.dtype, device=mean.device)
        log_density = -0.5 * ((codes - mean.unsqueeze(1)).square() / total.unsqueeze(1)).sum(2)
        return ClassPrediction(mean, marginals.variance, torch.log_softmax(log_density, 1), None)

    def extra_repr(self) -> str:
        return (
            f"{self.num_outputs}, noise={float(self.noise.detach()):.3g}, classes={self.classes},"
            f" expectation={self.expectation!r}"
        )

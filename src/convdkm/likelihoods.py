r"""Likelihoods: from marginals of the top-layer functions to training signal and predictions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from convdkm.checks import check_choice, check_positive, check_positive_number
from convdkm.choices import Expectation, GaussianExpectation
from convdkm.errors import InvalidInputError
from convdkm.gram import INDUCING_DTYPE
from convdkm.head import Marginals
from convdkm.layers.base import keep_dtype
from convdkm.layers.synchronise import batch_noise
from convdkm.numerics import safe_sqrt
from convdkm.prediction import ClassPrediction, Prediction, RealPrediction
from convdkm.softmax import NODES, NormalSoftmax


class Likelihood(nn.Module):
    """Base class: how targets depend on the top-layer functions.

    A subclass defines how to check targets, the expected log-likelihood that training needs, and
    the predictive distribution.
    """

    num_outputs: int

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


class Categorical(Likelihood):
    r"""Softmax classification (appendix D.2.2).

    .. math:: E_Q[\log P(y|f)] = E_Q[f_y] - E_Q\left[\log\sum_\lambda e^{f_\lambda}\right]

    The second expectation has no closed form.

    Args:
        num_classes: number of classes.
        expectation: ``"nodes"`` (default): an integral over one variable, whose nodes follow the
            means and variances of an image (:mod:`convdkm.softmax`); deterministic, and no image
            depends on another. ``"monte-carlo"`` (the paper): fresh random samples at every call.
        samples: their number; by default 64 nodes (and never fewer than 48) or 1000 samples.
    """

    softmax: NormalSoftmax | None

    def __init__(
        self,
        num_classes: int,
        *,
        expectation: Expectation = "nodes",
        samples: int | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_classes=num_classes)
        if num_classes < 2:
            raise InvalidInputError(f"classification needs at least 2 classes, got {num_classes}")
        check_choice("expectation", expectation, Expectation)
        self.num_outputs = num_classes
        self.expectation = expectation
        default = NODES if expectation == "nodes" else 1000
        self.samples = default if samples is None else samples
        check_positive(samples=self.samples)
        self.softmax = NormalSoftmax(self.samples) if expectation == "nodes" else None

    def functions(self, marginals: Marginals) -> Tensor:
        """Random values of the top-layer functions, ``(N, samples, classes)``."""
        mean = marginals.mean.unsqueeze(1)
        noise = batch_noise((len(mean), self.samples, self.num_outputs), mean)
        return mean + safe_sqrt(marginals.variance).unsqueeze(1) * noise

    def check_targets(self, targets: Tensor, count: int) -> Tensor:
        return check_labels(targets, self.num_outputs, count)

    def expected_log_prob(self, marginals: Marginals, targets: Tensor) -> Tensor:
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

    def expected_log_prob(self, marginals: Marginals, targets: Tensor) -> Tensor:
        mean, variance = marginals.mean, marginals.variance
        targets, noise = targets.to(mean.dtype), self.noise.to(mean.dtype)
        if self.expectation == "closed-form":
            squares = (targets - mean).square() + variance
        else:
            size = (self.samples, *mean.shape)
            draws = batch_noise(size, mean, images=1)
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

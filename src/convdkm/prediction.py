"""What a model predicts, as values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from convdkm.checks import check_positive
from convdkm.errors import InvalidInputError
from convdkm.numerics import square_root, standard_normal

if TYPE_CHECKING:
    from jaxtyping import Float
    from typing_extensions import Self


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictive distribution of a batch.

    Attributes:
        mean: mean of the top-layer functions, ``(N, outputs)``.
        variance: their variance, ``(N, 1)`` where all outputs share it, else ``(N, outputs)``.
        covariance: their covariance between every two inputs, ``(1, N, N)`` where all outputs
            share it, else ``(outputs, N, N)``; in joint predictions, else None.
    """

    mean: Float[Tensor, "N outputs"]
    variance: Float[Tensor, " N #outputs"]
    covariance: Float[Tensor, "#outputs N N"] | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.mean)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """One prediction from those of consecutive batches."""
        values: dict[str, Any] = {}
        for each in fields(cls):
            tensors = [getattr(part, each.name) for part in parts]
            values[each.name] = None if any(t is None for t in tensors) else torch.cat(tensors)
        return cls(**values)

    def sample(self, count: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """Samples of the top-layer functions at all inputs together, ``(count, N, outputs)``.

        The prediction must be a joint one: ``model.predict(inputs, joint=True)``.

        Args:
            count: how many functions to draw.
            generator: a source of random numbers on the CPU; torch's global one if not given.
        """
        check_positive(count=count)
        if self.covariance is None:
            raise InvalidInputError(
                "samples of functions need the covariance between inputs: predict(..., joint=True)"
            )
        roots = torch.stack([square_root(matrix) for matrix in self.covariance])
        outputs = self.mean.shape[1]
        noise = standard_normal((outputs, len(self), count), generator).to(roots)
        return self.mean + (roots @ noise).permute(2, 1, 0).to(self.mean.dtype)

    def cpu(self) -> Self:
        """The same prediction in the memory of the CPU."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{name: v.cpu() for name, v in values.items() if v is not None})

    def log_prob(self, targets: Tensor) -> Tensor:
        """Predictive log-probability (or log-density) of every target, ``(N,)``."""
        raise NotImplementedError(f"{type(self).__name__} must define log_prob(targets)")


@dataclass(frozen=True, eq=False)
class ClassPrediction(Prediction):
    """Distribution over classes.

    Attributes:
        log_probs: log-probability of every class, ``(N, classes)``.
        expected_entropy: mean entropy of the classes given the functions, ``(N,)``; None where the
            likelihood does not define it.
    """

    log_probs: Float[Tensor, "N classes"]
    expected_entropy: Float[Tensor, " N"] | None

    @property
    def probs(self) -> Tensor:
        """Probability of every class, ``(N, classes)``."""
        return self.log_probs.exp()

    @property
    def labels(self) -> Tensor:
        """The most probable class, ``(N,)``."""
        return self.log_probs.argmax(1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the predictive distribution in nats, ``(N,)``: all uncertainty."""
        return -(self.probs * self.log_probs).sum(1)

    @property
    def mutual_information(self) -> Tensor:
        """The part of the entropy that knowing the functions would remove, ``(N,)``."""
        if self.expected_entropy is None:
            raise InvalidInputError(
                "mutual information is defined for the Categorical likelihood only"
            )
        return (self.entropy - self.expected_entropy).clamp(min=0)

    def log_prob(self, targets: Tensor) -> Tensor:
        _require_count(targets, len(self))
        if targets.dtype.is_floating_point or targets.ndim != 1:
            raise InvalidInputError(
                f"labels must be integers of shape ({len(self)},), got {targets.dtype} of shape"
                f" {tuple(targets.shape)}"
            )
        classes = self.log_probs.shape[1]
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
            raise InvalidInputError(f"labels must lie between 0 and {classes - 1}")
        return self.log_probs.gather(1, targets.long()[:, None])[:, 0]

    def accuracy(self, targets: Tensor) -> Tensor:
        """Share of the targets that are the most probable class."""
        _require_count(targets, len(self))
        return (self.labels == targets).double().mean()


@dataclass(frozen=True, eq=False)
class RealPrediction(Prediction):
    """Normal distribution of real targets.

    Attributes:
        target_variance: variance of a target, noise included, ``(N, outputs)``.
    """

    target_variance: Float[Tensor, "N outputs"]

    @property
    def entropy(self) -> Tensor:
        """Differential entropy of the targets in nats, ``(N,)``."""
        return 0.5 * torch.log(2 * math.pi * math.e * self.target_variance).sum(1)

    def log_prob(self, targets: Tensor) -> Tensor:
        _require_count(targets, len(self))
        targets = targets.to(self.mean.dtype).reshape(self.mean.shape)
        squares = (targets - self.mean).square() / self.target_variance
        return -0.5 * (squares + torch.log(2 * math.pi * self.target_variance)).sum(1)


def _require_count(targets: Tensor, count: int) -> None:
    if len(targets) != count:
        raise InvalidInputError(f"{count} predictions, but {len(targets)} targets")

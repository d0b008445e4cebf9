r"""Multinomial logistic regression on features, its regularisation chosen on held-out images.

Minimises over W and b

.. math:: \frac1n \sum_i -\log \mathrm{softmax}(W x_i + b)_{y_i} + \frac{λ}{2} |W|^2

by L-BFGS in double precision. The features are centred, and scaled to a mean squared norm of one,
so that one list of λ suits all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional as F

from convdkm.data.splits import stratified
from convdkm.errors import InvalidInputError

Stop = Callable[[], bool]
STRENGTHS = tuple(10.0**power for power in (-1, -2, -3, -4, -5, -6))
"""The λ that are tried, from strong to weak, each beginning where the one before ended."""
HELD_OUT = 0.2
"""Share of the images of every class by which λ is chosen."""


@dataclass(frozen=True)
class Linear:
    """The scores W (x − mean) / scale + b of features x, and the strength λ of the penalty.

    The weight is ``(classes, features)``, the bias ``(classes,)``, the mean ``(features,)``.
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    scale: Tensor
    strength: float

    def __call__(self, features: Tensor) -> Tensor:
        """The score of every class, ``(n, classes)``."""
        inputs = (features - self.mean.to(features)) / self.scale.to(features)
        return F.linear(inputs, self.weight.to(features), self.bias.to(features))

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """The objective, with the penalty."""
        penalty = self.strength / 2 * self.weight.square().sum()
        return F.cross_entropy(self(features), labels) + penalty


def solve(features: Tensor, labels: Tensor, start: Linear, stop: Stop) -> Linear:
    """The minimiser for the λ of ``start``, from there on; ``stop`` may end the search early."""
    first = torch.cat([start.weight, start.bias.unsqueeze(1)], 1)

    def as_linear(flat: Tensor) -> Linear:
        both = flat.reshape(first.shape).to(features)
        return replace(start, weight=both[:, :-1], bias=both[:, -1])

    def objective(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        flat = torch.from_numpy(values).requires_grad_()
        value = as_linear(flat).loss(features, labels)
        (grad,) = torch.autograd.grad(value, flat)
        return value.item(), grad.numpy()

    def halt(_: NDArray[np.float64]) -> None:
        if stop():
            raise StopIteration

    found = minimize(
        objective,
        first.cpu().numpy().ravel(),
        jac=True,
        method="L-BFGS-B",
        callback=halt,
        options={"maxiter": 200, "maxcor": 20, "ftol": 1e-12, "gtol": 1e-7},
    )
    return as_linear(torch.tensor(found.x))


def logistic_regression(
    features: Tensor,
    labels: Tensor,
    classes: int,
    *,
    strengths: Sequence[float] = STRENGTHS,
    seed: int = 0,
    stop: Stop = lambda: False,
) -> Linear:
    """A classifier of features ``(n, d)``, with the λ of the largest held-out likelihood.

    It is fitted once more to all features with that λ. Where every class has one image, so that
    nothing can be held out, it has the strongest λ.

    Args:
        strengths: the λ to try, from strong to weak.
        seed: of the choice of held-out images.
        stop: called after every iteration; ends the search when it returns True.
    """
    if not strengths or min(strengths) <= 0:
        raise InvalidInputError(f"strengths must be numbers above zero, got {tuple(strengths)}")
    features = features.double()
    mean = features.mean(0)
    scale = (features - mean).square().sum(1).mean().sqrt().clamp(min=1e-12)
    zero = torch.zeros(classes, features.shape[1] + 1).to(features)
    best = found = Linear(zero[:, 1:], zero[:, 0], mean, scale, max(strengths))
    held = stratified(labels, max(round(HELD_OUT * len(labels)), 1), seed, left=1)
    if len(held) and len(strengths) > 1:
        keep = torch.ones(len(labels), dtype=torch.bool)
        keep[held] = False
        least = float("inf")
        for strength in strengths:
            start = replace(found, strength=strength)
            found = solve(features[keep], labels[keep], start, stop)
            loss = float(F.cross_entropy(found(features[held]), labels[held]))
            if loss < least:
                least, best = loss, found
            if stop():
                break
    return solve(features, labels, best, stop)

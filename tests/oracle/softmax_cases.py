"""Expectations of a softmax over wide ranges, and how far random samples are from them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import log_softmax, logsumexp

from oracle.blocks import Array
from oracle.likelihood import softmax_expectations

CLASSES = (2, 3, 10, 30, 100, 1000)
VARIANCES = (1e-6, 1e-2, 1.0, 10.0, 100.0, 1000.0)
LARGEST_MEANS = (0.0, 1.0, 5.0, 20.0)


@dataclass(frozen=True)
class SoftmaxCase:
    """Functions with a variance in common, and means between 0 and the largest."""

    classes: int
    variance: float
    largest: float

    def __str__(self) -> str:
        return f"{self.classes} classes, variance {self.variance:g}, means to {self.largest:g}"

    @cached_property
    def mean(self) -> Array:
        return np.random.default_rng(self.classes).uniform(0, 1, self.classes) * self.largest

    @cached_property
    def truth(self) -> tuple[float, Array, float]:
        return softmax_expectations(self.mean, np.full(self.classes, math.sqrt(self.variance)))

    def errors(self, log_sum_exp: Array, log_probs: Array) -> tuple[float, float]:
        """Of estimates, one for each row: root mean square of that of E[log Σ exp f], and the mean
        Kullback-Leibler divergence of the probabilities from the true ones."""
        expected, probabilities, _ = self.truth
        probabilities = probabilities / probabilities.sum()
        divergence = (probabilities * (np.log(probabilities) - log_probs)).sum(1)
        return float(np.sqrt(((log_sum_exp - expected) ** 2).mean())), float(divergence.mean())

    def errors_of_nodes(self, nodes: Array) -> tuple[float, float]:
        """Of averages over nodes ``(repeats, nodes, classes)`` of a standard normal."""
        functions = self.mean + math.sqrt(self.variance) * nodes
        log_probs = logsumexp(log_softmax(functions, 2), 1) - math.log(nodes.shape[1])
        return self.errors(logsumexp(functions, 2).mean(1), log_probs)

    def errors_of_samples(self, samples: int, repeats: int) -> tuple[float, float]:
        """Of averages over random samples."""
        generator = np.random.default_rng(1)
        return self.errors_of_nodes(generator.standard_normal((repeats, samples, self.classes)))


SOFTMAX_CASES = [
    SoftmaxCase(*case) for case in itertools.product(CLASSES, VARIANCES, LARGEST_MEANS)
]

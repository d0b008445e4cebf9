"""Gaussian likelihood and the mini-batch objective (appendix D)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from oracle.blocks import Array


def _log_normal_density(value: float, mean: float, variance: float) -> float:
    return -0.5 * math.log(2 * math.pi * variance) - (value - mean) ** 2 / (2 * variance)


def gaussian_expected_log_likelihood(
    mean: Array, variance: Array, targets: Array, noise: float
) -> Array:
    """E_Q[log N(y; f, σ²)] of every image (appendix D.2.1), the constant 2π included."""
    expected = np.zeros(len(mean))
    for index in np.ndindex(*mean.shape):
        at_mean = _log_normal_density(targets[index], mean[index], noise)
        expected[index[0]] += at_mean - variance[index] / (2 * noise)
    return expected


def gaussian_class_probabilities(mean: Array, variance: Array, noise: float) -> Array:
    """Bayes' rule among one-hot vectors: densities of N(mean, variance + σ²), normalised."""
    count, classes = mean.shape
    probabilities = np.zeros((count, classes))
    for image in range(count):
        for label in range(classes):
            code = np.eye(classes)[label]
            probabilities[image, label] = math.prod(
                math.exp(_log_normal_density(code[k], mean[image, k], variance[image, k] + noise))
                for k in range(classes)
            )
        probabilities[image] /= probabilities[image].sum()
    return probabilities


def objective(
    expected_log_likelihood: Array,
    head_kl: Array,
    layer_kls: Iterable[tuple[float, float]],
    num_data: int,
) -> float:
    """The mean mini-batch objective of appendix D.1; ``layer_kls`` holds pairs (ν, KL)."""
    regulariser = sum(nu * value for nu, value in layer_kls)
    mean = expected_log_likelihood.sum() / len(expected_log_likelihood)
    return float(mean - (head_kl.sum() + regulariser) / num_data)

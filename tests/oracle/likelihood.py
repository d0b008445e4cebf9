"""Likelihoods and the mini-batch objective (appendix D)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import numpy as np
from scipy.interpolate import CubicSpline

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


def softmax_expectations(mean: Array, deviation: Array) -> tuple[float, Array, float]:
    """E[log Σ exp f], E[softmax f] and E[entropy of softmax f] for f ~ N(mean, deviation²).

    The largest of all f_c + g_c, with g_c standard Gumbel, is log Σ exp f plus a Gumbel number, and
    it is that of class c with probability softmax(f)_c. So all three are integrals over its value
    x, taken here in steps fine enough for any further digit to be lost in rounding.
    """
    step = 0.1 * math.sqrt(1 + deviation.min() ** 2)
    x = np.arange((mean - 10 - 9 * deviation).max(), (mean + 45 + 9 * deviation).max(), step)
    below = np.zeros((len(mean), len(x)))
    density, with_function = np.zeros_like(below), np.zeros_like(below)
    for label, (centre, width) in enumerate(zip(mean, deviation, strict=True)):
        log_exponent, log_density, of_function = _normal_plus_gumbel(float(width))
        # Beyond what is tabulated, exp(-x) is all there is.
        inside = np.minimum(x - centre, 70 + 9 * width)
        further = np.exp(inside - (x - centre))
        below[label] = -np.exp(log_exponent(inside)) * further
        density[label] = np.exp(log_density(inside)) * further
        with_function[label] = centre + of_function(inside)
    largest = np.exp(below.sum(0))
    step_at = x[np.searchsorted(largest, 0.5)] + step / 2
    log_sum_exp = step_at - np.euler_gamma + step * ((x > step_at) - largest).sum()
    wins = step * density * np.exp(below.sum(0) - below)
    probabilities = wins.sum(1)
    return log_sum_exp, probabilities, log_sum_exp - (wins * with_function).sum()


@cache
def _normal_plus_gumbel(deviation: float) -> tuple[CubicSpline, CubicSpline, CubicSpline]:
    """Of f + g, f ~ N(0, deviation²) and g Gumbel, at u: log(-log P(f + g < u)), the logarithm of
    the density, and E[f | f + g = u]; by sums over f."""
    scale = math.sqrt(1 + deviation**2)
    grid = np.arange(-11 - 9 * deviation, 71 + 9 * deviation, 0.02 * scale)
    normal = np.arange(-13, 13, min(0.1, 0.2 / (deviation + 1e-300)))
    weight = np.exp(-(normal**2) / 2)
    weight /= weight.sum()
    values = []
    for u in grid:
        rest = np.exp(-(u - deviation * normal))
        kept = np.exp(-rest)
        cdf, tail = (weight * kept).sum(), (weight * -np.expm1(-rest)).sum()
        exponent = -math.log(cdf) if 1e-290 < cdf < 0.5 else -math.log1p(-min(tail, 1 - 1e-16))
        product = weight * rest * kept
        density = product.sum()
        expected = (product * deviation * normal).sum() / density if density > 0 else 0.0
        values.append((math.log(exponent), math.log(max(density, 1e-300)), expected))
    return tuple(CubicSpline(grid, column) for column in np.array(values).T)


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

"""Kernels as functions of three numbers: k(x, y) from c = G_xy, a = G_xx and b = G_yy (Eq. 2-4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from oracle.blocks import Array, Blocks

KernelFunction = Callable[[Array, Array, Array], Array]


def apply_kernel(kernel: KernelFunction, gram: Blocks) -> Blocks:
    """The kernel of every entry of every block."""
    own = np.diag(gram.ii)
    across = own.reshape(1, -1, *(1,) * len(gram.space))
    return Blocks(
        kernel(gram.ii, own[:, None], own[None, :]),
        kernel(gram.it, across, gram.tt[:, None]),
        kernel(gram.tt, gram.tt, gram.tt),
    )


def arc_cosine(order: int, weight_variance: float = 1.0, bias_variance: float = 0.0):
    """Cho & Saul (2009), n = 0, 1, 2: ``|x|ⁿ|y|ⁿ J_n(θ) / π`` with θ the angle between x and y."""

    def angular(theta: Array) -> Array:
        if order == 0:
            return math.pi - theta
        if order == 1:
            return np.sin(theta) + (math.pi - theta) * np.cos(theta)
        return 3 * np.sin(theta) * np.cos(theta) + (math.pi - theta) * (1 + 2 * np.cos(theta) ** 2)

    def kernel(c: Array, a: Array, b: Array) -> Array:
        norms = np.sqrt(a * b)
        theta = np.arccos(np.clip(c / norms, -1, 1))
        return weight_variance * norms**order * angular(theta) / math.pi + bias_variance

    return kernel


def arc_sine(weight_variance: float = 1.0, bias_variance: float = 0.0):
    """Williams (1997): ``E[erf(u) erf(v)]`` of normal u and v with the covariance of x and y."""

    def kernel(c: Array, a: Array, b: Array) -> Array:
        sine = np.arcsin(2 * c / np.sqrt((1 + 2 * a) * (1 + 2 * b)))
        return weight_variance * 2 / math.pi * sine + bias_variance

    return kernel


def sine(frequency: float, phase: float, weight_variance: float = 1.0, bias_variance: float = 0.0):
    """``E[sin(ωu + φ) sin(ωv + φ)]`` of normal u and v; 2 sin s sin t = cos(s−t) − cos(s+t)."""

    def kernel(c: Array, a: Array, b: Array) -> Array:
        minus = np.exp(-(frequency**2) * (a + b - 2 * c) / 2)
        plus = np.exp(-(frequency**2) * (a + b + 2 * c) / 2)
        value = (minus - math.cos(2 * phase) * plus) / 2
        return weight_variance * value + bias_variance

    return kernel


def leaky_relu(slope: float, weight_variance: float = 1.0, bias_variance: float = 0.0):
    """``E[f(u) f(v)] · 2 / (1 + slope²)`` of normal u and v, f the leaky ReLU."""

    def kernel(c: Array, a: Array, b: Array) -> Array:
        norms = np.sqrt(a * b)
        theta = np.arccos(np.clip(c / norms, -1, 1))
        same = np.sin(theta) + (math.pi - theta) * np.cos(theta)
        opposite = np.sin(theta) - theta * np.cos(theta)
        both = (1 + slope**2) * same - 2 * slope * opposite
        return weight_variance * norms * both / (math.pi * (1 + slope**2)) + bias_variance

    return kernel


def isotropic(profile: Callable[[Array], Array], lengthscale: float, scale: float):
    """``scale · profile(r)`` of the distance r in units of the length scale (Eq. 2)."""

    def kernel(c: Array, a: Array, b: Array) -> Array:
        distance = np.sqrt(np.maximum(a - 2 * c + b, 0)) / lengthscale
        return scale * profile(distance)

    return kernel


def squared_exponential(lengthscale: float, scale: float):
    return isotropic(lambda r: np.exp(-(r**2) / 2), lengthscale, scale)


def matern(smoothness: float, lengthscale: float, scale: float):
    """Rasmussen & Williams (2006), Eq. 4.16 and 4.17."""
    profiles = {
        0.5: lambda r: np.exp(-r),
        1.5: lambda r: (1 + math.sqrt(3) * r) * np.exp(-math.sqrt(3) * r),
        2.5: lambda r: (1 + math.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-math.sqrt(5) * r),
    }
    return isotropic(profiles[smoothness], lengthscale, scale)


def rational_quadratic(alpha: float, lengthscale: float, scale: float):
    """Rasmussen & Williams (2006), Eq. 4.19."""
    return isotropic(lambda r: (1 + r**2 / (2 * alpha)) ** -alpha, lengthscale, scale)


def normalised_gaussian(gamma: float):
    """Shankar et al. (2020): ``|x||y| exp(γ(cos θ − 1))``."""
    return lambda c, a, b: np.sqrt(a * b) * np.exp(gamma * (c / np.sqrt(a * b) - 1))


def normalised_polynomial(weights: Sequence[float]):
    """``|x||y| Σ wₙ cosⁿ θ``."""

    def kernel(c, a, b):
        norm = np.sqrt(a * b)
        return norm * sum(weight * (c / norm) ** (n + 1) for n, weight in enumerate(weights))

    return kernel


def linear():
    """``k(x, y) = G_xy``."""
    return lambda c, a, b: c


def scaled(kernel: KernelFunction, factor: float):
    return lambda c, a, b: factor * kernel(c, a, b)


def total(kernels: Sequence[KernelFunction]):
    """The sum of kernels."""
    return lambda c, a, b: sum(kernel(c, a, b) for kernel in kernels)


def product(kernels: Sequence[KernelFunction]):
    def kernel(c: Array, a: Array, b: Array) -> Array:
        value = np.ones(np.broadcast(c, a, b).shape)
        for factor in kernels:
            value = value * factor(c, a, b)
        return value

    return kernel


def convex_combination(kernels: Sequence[KernelFunction], weights: Sequence[float]):
    """``Σ wₖ kₖ / Σ wₖ``."""
    whole = sum(weights)
    return total([scaled(k, w / whole) for k, w in zip(kernels, weights, strict=True)])

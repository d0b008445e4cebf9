"""Kernels: Gram → Gram, entry by entry, with no knowledge of space."""

from convdkm.kernels.angular import Angular
from convdkm.kernels.arccos import ArcCosine, arccosine
from convdkm.kernels.base import ConvexCombination, Kernel, Linear, Product, Scaled, Sum
from convdkm.kernels.gaussian import NormalisedGaussian
from convdkm.kernels.isotropic import Isotropic, Matern, RationalQuadratic, SquaredExponential
from convdkm.kernels.polynomial import NormalisedPolynomial
from convdkm.numerics import safe_sqrt

__all__ = [
    "Angular",
    "ArcCosine",
    "ConvexCombination",
    "Isotropic",
    "Kernel",
    "Linear",
    "Matern",
    "NormalisedGaussian",
    "NormalisedPolynomial",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "SquaredExponential",
    "Sum",
    "arccosine",
    "safe_sqrt",
]

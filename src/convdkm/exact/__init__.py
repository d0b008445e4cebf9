"""Full-rank machines: exact, cubic in the number of points, and the truth the sparse ones meet."""

from convdkm.exact.conv import ExactKernel, propagate
from convdkm.exact.dkm import ExactObjective, FullRankDKM
from convdkm.exact.finite import FiniteWidthDGP, PriorSample, wishart_log_density
from convdkm.exact.layers import (
    Convolution,
    Dense,
    GlobalSumPool,
    LayerNorm,
    Pooling,
    Residual,
)
from convdkm.exact.regression import GPRegression
from convdkm.exact.spatial import SpatialGram

__all__ = [
    "Convolution",
    "Dense",
    "ExactKernel",
    "ExactObjective",
    "FiniteWidthDGP",
    "FullRankDKM",
    "GPRegression",
    "GlobalSumPool",
    "LayerNorm",
    "Pooling",
    "PriorSample",
    "Residual",
    "SpatialGram",
    "propagate",
    "wishart_log_density",
]

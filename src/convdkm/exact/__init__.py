"""Full-rank machines: exact, cubic in the number of points, and the truth the sparse ones meet."""

from convdkm.exact.conv import ExactKernel, propagate
from convdkm.exact.dkm import ExactObjective, FullRankDKM, fully_connected_body
from convdkm.exact.finite import FiniteWidthDGP, PriorSample, wishart_log_density
from convdkm.exact.layers import (
    Convolution,
    Dense,
    GlobalSumPool,
    LayerNorm,
    LearnedGram,
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
    "LearnedGram",
    "Pooling",
    "PriorSample",
    "Residual",
    "SpatialGram",
    "fully_connected_body",
    "propagate",
    "wishart_log_density",
]

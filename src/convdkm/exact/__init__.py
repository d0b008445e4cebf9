"""Full-rank machines: exact, cubic in the number of points, and the truth the sparse ones meet."""

from convdkm.exact.conv import Convolution, ExactKernel, propagate
from convdkm.exact.dkm import ExactObjective, FullRankDKM
from convdkm.exact.regression import GPRegression
from convdkm.exact.spatial import SpatialGram

__all__ = [
    "Convolution",
    "ExactKernel",
    "ExactObjective",
    "FullRankDKM",
    "GPRegression",
    "SpatialGram",
    "propagate",
]

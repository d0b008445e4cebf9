"""Exact kernels of infinitely wide convolutional networks, as the papers of Table 3 use them."""

from convdkm.lab.baselines.kernels.layers import (
    Architecture,
    AveragePool,
    Conv,
    Flatten,
    Gaussian,
    GlobalAverage,
    LocalAverage,
    Relu,
    Residual,
)
from convdkm.lab.baselines.kernels.nngp import NNGPKernel
from convdkm.lab.baselines.kernels.zoo import myrtle, plain, residual

__all__ = [
    "Architecture",
    "AveragePool",
    "Conv",
    "Flatten",
    "Gaussian",
    "GlobalAverage",
    "LocalAverage",
    "NNGPKernel",
    "Relu",
    "Residual",
    "myrtle",
    "plain",
    "residual",
]

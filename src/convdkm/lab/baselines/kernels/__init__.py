"""Exact kernels of infinitely wide convolutional networks, as the papers of Table 3 use them."""

from convdkm.lab.baselines.kernels.layers import Architecture, LocalAverage, myrtle, plain, residual
from convdkm.lab.baselines.kernels.nngp import NNGPKernel

__all__ = ["Architecture", "LocalAverage", "NNGPKernel", "myrtle", "plain", "residual"]

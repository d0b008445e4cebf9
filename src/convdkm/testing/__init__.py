"""Conformance checks for your own layers, kernels and likelihoods: a line each in your tests.

>>> import torch
>>> from convdkm import ArcCosine, Gaussian, GramLayer
>>> from convdkm.testing import check_kernel, check_layer, check_likelihood
>>> check_kernel(ArcCosine())
>>> check_layer(GramLayer(4), num_inducing=4, space=(3, 3))
>>> check_likelihood(Gaussian(2), torch.randn(5, 2))

A check returns nothing, or raises a :class:`ConformanceError` that names the requirement that was
broken and says by how much. They need no test framework, and leave what they are given as it was.
What each requirement is, and why, is in the docstrings of
:mod:`convdkm.testing.layer_requirements`, :mod:`convdkm.testing.kernel_requirements`,
:mod:`convdkm.testing.likelihood_requirements` and :mod:`convdkm.testing.state_requirements`.
"""

from convdkm.testing.checks import check_kernel, check_layer, check_likelihood
from convdkm.testing.grams import degenerate_gram, random_gram
from convdkm.testing.outcome import ConformanceError

__all__ = [
    "ConformanceError",
    "check_kernel",
    "check_layer",
    "check_likelihood",
    "degenerate_gram",
    "random_gram",
]

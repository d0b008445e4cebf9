"""Conformance checks for your own layers and kernels: three lines in your tests.

>>> from convdkm import ArcCosine, GramLayer
>>> from convdkm.testing import check_kernel, check_layer
>>> check_kernel(ArcCosine())
>>> check_layer(GramLayer(4), num_inducing=4, space=(3, 3))

A check returns nothing, or raises a :class:`ConformanceError` that names the requirement that was
broken and says by how much. They need no test framework, and leave the layer they are given as it
was. What each requirement is, and why, is in the docstrings of
:mod:`convdkm.testing.layer_requirements` and :mod:`convdkm.testing.kernel_requirements`.
"""

from convdkm.testing.checks import check_kernel, check_layer
from convdkm.testing.grams import degenerate_gram, random_gram
from convdkm.testing.outcome import ConformanceError

__all__ = ["ConformanceError", "check_kernel", "check_layer", "degenerate_gram", "random_gram"]

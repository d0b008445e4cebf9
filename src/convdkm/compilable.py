"""The layers that have elementwise functions to compile."""

from __future__ import annotations

from torch import nn

from convdkm.kernels.arccos import ArcCosine
from convdkm.kernels.gaussian import NormalisedGaussian
from convdkm.kernels.polynomial import NormalisedPolynomial
from convdkm.layers.gram_layer import GramLayer

Compilable = ArcCosine | NormalisedGaussian | NormalisedPolynomial | GramLayer


def compilable(model: nn.Module) -> list[Compilable]:
    """Those of a machine, whose ``compiled`` says whether they are to use compiled functions."""
    return [module for module in model.modules() if isinstance(module, Compilable)]

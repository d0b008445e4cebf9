"""The layers that have elementwise functions to compile."""

from __future__ import annotations

from torch import nn

from convdkm.kernels.base import Kernel
from convdkm.layers.gram_layer import GramLayer


def compilable(model: nn.Module) -> list[Kernel | GramLayer]:
    """Those of a machine, whose ``compiled`` says whether they are to use compiled functions."""
    return [module for module in model.modules() if isinstance(module, (Kernel, GramLayer))]

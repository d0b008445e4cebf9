"""The parts of a machine that have elementwise functions to compile."""

from __future__ import annotations

from typing import Any

from torch import nn


def compilable(model: nn.Module) -> list[Any]:
    """Those of a machine, whose ``compiled`` says whether they are to use compiled functions."""
    return [part for part in model.modules() if isinstance(getattr(part, "compiled", None), bool)]

"""The work on every number of every map, which is most of what a step costs beside convolutions.

Two engines do it: :class:`Piecewise` by PyTorch's own operations, and :class:`Compiled` by
functions that ``torch.compile`` makes. They agree to rounding; see :class:`Engine`.
"""

from __future__ import annotations

from convdkm.runtime.compiled import Compiled, compiled_engine
from convdkm.runtime.engine import Engine
from convdkm.runtime.piecewise import PIECEWISE, Piecewise

__all__ = ["PIECEWISE", "Compiled", "Engine", "Piecewise", "compiled_engine", "engine"]


def engine(*, compiled: bool) -> Engine:
    """The compiled engine where it is asked for and there is a compiler, else the other."""
    return (compiled_engine() if compiled else None) or PIECEWISE

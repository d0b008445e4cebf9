"""What the estimators' parameters may be, checked when ``fit`` is called."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from convdkm.checks import check_choice
from convdkm.config import Precision
from convdkm.errors import InvalidInputError
from convdkm.kernels import KERNELS, Kernel


def as_kernel(kernel: object) -> Kernel:
    """A kernel given by its name or as itself."""
    return kernel if isinstance(kernel, Kernel) else KERNELS.build(str(kernel), {})


def as_integer(name: str, value: Any, least: int = 1) -> int:
    """An integer of at least ``least``, whether Python's or NumPy's."""
    if type(value) is bool or not isinstance(value, Integral) or value < least:
        raise InvalidInputError(f"{name} must be an integer of {least} or more, got {value!r}")
    return int(value)


def as_integers(name: str, value: Any) -> tuple[int, ...]:
    """One positive integer for each stage."""
    if not isinstance(value, Iterable) or isinstance(value, str) or not (listed := list(value)):
        raise InvalidInputError(f"{name} must hold a number for each stage, got {value!r}")
    return tuple(as_integer(name, entry) for entry in listed)


def as_positive(name: str, value: Any) -> float:
    """A finite number above zero, whether Python's or NumPy's."""
    if type(value) is bool or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise InvalidInputError(f"{name} must be a positive, finite number, got {value!r}")
    return float(value)


def as_nu(value: Any) -> float | tuple[float, ...]:
    """ν: a number from 0 to infinity, or one for each Gram layer."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(_one_nu(entry) for entry in value)
    return _one_nu(value)


def _one_nu(value: Any) -> float:
    if type(value) is bool or not isinstance(value, Real) or not float(value) >= 0:
        raise InvalidInputError(f"nu must lie between 0 and infinity, got {value!r}")
    return float(value)


def as_precision(precision: Any) -> Precision:
    """``"float32"`` or ``"float64"``."""
    check_choice("precision", precision, Precision)
    chosen: Precision = precision
    return chosen

"""Single numbers inside operations whose derivative is written out.

On the CPU a number is best worked with as Python's own: an operation on a tensor of one element
costs as much as on one of thousands. On other devices it stays a tensor, since to read it would
mean to wait for the device.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from convdkm import numerics
from convdkm.runtime.tape import RecordedNumber, leaf, tape_under_way

Scalar = float | RecordedNumber | Tensor


def scalar(value: Tensor) -> Scalar:
    """The number in a tensor of one element."""
    if value.device.type != "cpu":
        return value
    tape = tape_under_way()
    return float(value.item()) if tape is None else tape.number(value)


def as_tensor(value: Scalar, like: Tensor) -> Tensor:
    """A number as a tensor ``()`` with the dtype and device of ``like``."""
    if isinstance(value, Tensor):
        return value.reshape(()).to(like.dtype)
    number: Any = value
    return torch.full((), number, dtype=like.dtype, device=like.device)


def affine(values: Tensor, slope: Scalar, shift: Scalar) -> Tensor:
    """``slope · values + shift``, in one pass over memory where the slope is a number."""
    if isinstance(slope, Tensor):
        return values * slope + shift
    number: Any = slope
    return torch.add(as_tensor(shift, values), values, alpha=number)


@leaf
def exponential(value: Scalar) -> Scalar:
    """``exp(value)``; infinite where it is too large."""
    if isinstance(value, Tensor):
        return value.exp()
    return math.exp(value) if value < 709.0 or math.isnan(value) else math.inf


@leaf
def inverse_root(variance: Scalar) -> Scalar:
    """``variance^(-1/2)``, and zero where the variance is not positive."""
    if isinstance(variance, Tensor):
        return numerics.inverse_root(variance)
    return 0.0 if variance <= 0 else 1 / math.sqrt(variance)

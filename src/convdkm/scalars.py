"""Single numbers inside operations whose derivative is written out.

On the CPU a number is best worked with as Python's own: an operation on a tensor of one element
costs as much as on one of thousands. On other devices it stays a tensor, since to read it would
mean to wait for the device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convdkm import numerics

Scalar = float | Tensor


def scalar(value: Tensor) -> Scalar:
    """The number in a tensor of one element."""
    return float(value.item()) if value.device.type == "cpu" else value


def as_tensor(value: Scalar, like: Tensor) -> Tensor:
    """A number as a tensor ``()`` with the dtype and device of ``like``."""
    if isinstance(value, Tensor):
        return value.reshape(()).to(like.dtype)
    return torch.full((), value, dtype=like.dtype, device=like.device)


def exponential(value: Scalar) -> Scalar:
    """``exp(value)``; infinite where it is too large."""
    if isinstance(value, Tensor):
        return value.exp()
    return math.exp(value) if value < 709.0 or math.isnan(value) else math.inf


def inverse_root(variance: Scalar) -> Scalar:
    """``variance^(-1/2)``, and zero where the variance is not positive."""
    if isinstance(variance, Tensor):
        return numerics.inverse_root(variance)
    return 0.0 if variance <= 0 else 1 / math.sqrt(variance)

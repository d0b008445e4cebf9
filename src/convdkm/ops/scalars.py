"""Scalars inside operations with a derivative written by hand.

On the CPU they are Python floats: an operation on a tensor of one element costs as much as on one
of thousands. On other devices they stay tensors, since reading one would wait for the device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convdkm import numerics
from convdkm.runtime.tape import RecordedNumber, leaf, tape_under_way

Scalar = float | RecordedNumber | Tensor


def scalar(value: Tensor) -> Scalar:
    """The value of a tensor of one element."""
    if value.device.type != "cpu":
        return value
    tape = tape_under_way()
    return float(value.item()) if tape is None else tape.number(value)


def as_tensor(value: Scalar, like: Tensor) -> Tensor:
    """A scalar as a tensor ``()`` with the dtype and device of ``like``."""
    if isinstance(value, Tensor):
        return value.reshape(()).to(like.dtype)
    return torch.full((), value, dtype=like.dtype, device=like.device)  # type: ignore[arg-type]


def affine(values: Tensor, slope: Scalar, shift: Scalar) -> Tensor:
    """``slope · values + shift``, in one pass over memory where the slope is no tensor."""
    if isinstance(slope, Tensor):
        return values * slope + shift
    return torch.add(as_tensor(shift, values), values, alpha=slope)  # type: ignore[arg-type]


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

"""What a machine asks of the images or vectors that it is given."""

from __future__ import annotations

import torch
from torch import Tensor

from convdkm.errors import InvalidInputError

SampleShape = tuple[int | None, ...]
"""Shape of one image or vector; None for an axis of any length."""


def check_samples(inputs: Tensor, expected: SampleShape) -> None:
    """Raise unless ``inputs`` is a batch of finite samples of the expected shape."""
    axes = ", ".join("any" if size is None else str(size) for size in expected)
    if not isinstance(inputs, Tensor):
        raise InvalidInputError(
            f"inputs must be a torch.Tensor of shape (N, {axes}), got {type(inputs).__name__}"
        )
    if not inputs.dtype.is_floating_point:
        raise InvalidInputError(
            f"inputs must be floating-point, got {inputs.dtype}; convert and scale them first"
        )
    fits = inputs.ndim == len(expected) + 1 and all(
        size is None or size == actual
        for size, actual in zip(expected, inputs.shape[1:], strict=True)
    )
    if not fits:
        raise InvalidInputError(f"inputs must have shape (N, {axes}), got {tuple(inputs.shape)}")
    if 0 in inputs.shape:
        raise InvalidInputError(f"the batch is empty: shape {tuple(inputs.shape)}")
    check_finite(inputs)


def check_finite(inputs: Tensor) -> None:
    """Raise if a value is NaN or infinite, naming the samples."""
    # A sum is quick, and finite only if all values are; that of finite ones may overflow.
    if inputs.is_meta or bool(torch.isfinite(inputs.sum()) or torch.isfinite(inputs).all()):
        return
    bad = ~torch.isfinite(inputs)
    which = bad.flatten(1).any(1).nonzero().flatten().tolist()
    shown = ", ".join(map(str, which[:5])) + (", …" if len(which) > 5 else "")
    raise InvalidInputError(
        f"{int(bad.sum())} input values are NaN or infinite (in {inputs.dtype}), in samples {shown}"
    )


def cast_samples(inputs: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Checked inputs on a device and in a precision, in which they must be finite too."""
    cast = inputs.to(device, dtype)
    if inputs.dtype != dtype:
        check_finite(cast)
    return cast

"""Arrays of images in the layouts people have them in, as rows and as channels, height, width."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convdkm.errors import InvalidInputError

CHANNELS = (1, 3, 4)
"""Lengths by which an axis is taken for that of the channels: grey, colour, with transparency."""

Shape = tuple[int, ...]


def as_integers(name: str, value: Any) -> Shape:
    """One positive integer for each stage or axis, whether Python's or NumPy's."""
    if not isinstance(value, Iterable) or isinstance(value, str) or not (listed := list(value)):
        of = "axis" if name == "image_shape" else "stage"
        raise InvalidInputError(f"{name} must hold a number for each {of}, got {value!r}")
    for entry in listed:
        if type(entry) is bool or not isinstance(entry, Integral) or entry < 1:
            raise InvalidInputError(f"{name} must hold positive integers, got {entry!r}")
    return tuple(map(int, listed))


def full_shape(image_shape: Any) -> Shape:
    """``(C, H, W)`` of an option that may leave out the channel; ``(1, length)`` of a signal."""
    shape = as_integers("image_shape", image_shape)
    if len(shape) > 3:
        raise InvalidInputError(f"image_shape must be (C, H, W) or (H, W), got {image_shape!r}")
    return shape if len(shape) == 3 else (1, *shape)


def shape_and_layout(image: Shape, expected: Shape | None) -> tuple[Shape, bool]:
    """The full shape of an array's images, and whether its channels come last.

    Args:
        image: shape of one image as it is in the array.
        expected: the full shape, where it is known; guessed otherwise.
    """
    if expected is not None:
        if expected in (image, (1, *image)):
            return expected, False
        if image == (*expected[1:], expected[0]):
            return expected, True
        raise InvalidInputError(f"images must have shape {expected}, got {image}")
    if len(image) > 3:
        raise InvalidInputError(
            "images must be (N, C, H, W), (N, H, W, C) or (N, H, W), or rows with image_shape; got"
            f" {len(image) + 1} axes"
        )
    if len(image) < 3:
        return (1, *image), False
    first, middle, last = image
    if last in CHANNELS and first not in CHANNELS:
        return (last, first, middle), True
    return image, False


def as_rows(images: Any, channels_last: bool) -> NDArray[Any]:
    """Each image as one row, channel after channel."""
    array = np.asarray(images)
    if channels_last:
        array = np.moveaxis(array, -1, 1)
    return array.reshape(len(array), math.prod(array.shape[1:]))

"""Images to predict, checked against those that a method was fitted to."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from convdkm.errors import InvalidInputError


def check_like(images: Tensor, shape: Sequence[int]) -> None:
    """Raise unless images are floating-point ``(N, *shape)``, at least one."""
    right = images.ndim == 4 and tuple(images.shape[1:]) == tuple(shape) and len(images)
    if not right or not images.is_floating_point():
        wanted = ", ".join(map(str, ("N", *shape)))
        raise InvalidInputError(
            f"images to predict must be floating-point ({wanted}) as those of fit, at least one;"
            f" got {tuple(images.shape)} of {images.dtype}"
        )

"""Size, channels and memory of images."""

from __future__ import annotations

import os
from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from convdkm.checks import check_positive
from convdkm.errors import InvalidInputError
from convdkm.runtime.memory import available_memory

_LUMA = (0.299, 0.587, 0.114)


def check_channels(channels: int | None) -> None:
    """Raise unless the option is 1 (grey), 3 (colour) or absent."""
    if channels not in (None, 1, 3):
        raise InvalidInputError(f"channels must be 1 (grey) or 3 (colour), got {channels!r}")


def height_and_width(image_size: int | Sequence[int] | None) -> tuple[int, int] | None:
    """The option ``image_size``, one side of a square or height and width, as a pair."""
    if image_size is None:
        return None
    sides = tuple(image_size) if isinstance(image_size, Sequence) else (image_size, image_size)
    if len(sides) != 2:
        raise InvalidInputError(
            f"image_size must be one number, or height and width; got {image_size!r}"
        )
    for side in sides:
        check_positive(image_size=side)
    return sides[0], sides[1]


def resized(images: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Images ``(N, channels, height, width)`` brought to a size, antialiased where they shrink."""
    if size is None or tuple(images.shape[2:]) == size:
        return images
    if not len(images):
        return images.new_empty(0, images.shape[1], *size)
    small = F.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)
    return small.clamp_(0, 1)


def with_channels(images: Tensor, channels: int | None) -> Tensor:
    """Grey images ``(N, 1, …)`` as colour, or colour ``(N, 3, …)`` as grey (luma of BT.601)."""
    here = images.shape[1]
    if channels is None or here == channels:
        return images
    if here == 1:
        return images.expand(-1, channels, -1, -1).contiguous()
    if here != 3:
        raise InvalidInputError(
            f"images with {here} channels cannot be turned into {channels}; leave out channels"
        )
    luma = images.new_tensor(_LUMA).reshape(1, 3, 1, 1)
    return (images * luma).sum(1, keepdim=True)


def require_memory(needed: int, what: str, advice: str = "") -> None:
    """Raise if something takes more bytes than this machine has left."""
    left = available_memory()
    if left is None:
        try:
            left = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, ValueError, OSError):  # not every system tells
            return
    if needed > left:
        raise InvalidInputError(
            f"{what} take {needed / 2**30:.1f} GiB, but this machine has {left / 2**30:.1f} GiB of"
            f" memory left{advice}"
        )

"""Random crops, flips and cutout, drawn anew for every image."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from convdkm.errors import InvalidInputError


def random_crop_flip(
    images: Tensor,
    *,
    margin: int = 4,
    flip: bool | Tensor = True,
    cutout: int = 0,
    generator: torch.Generator | None = None,
    first: int = 0,
    total: int | None = None,
) -> Tensor:
    """Each image cropped at random from itself with a margin of zeros, and mirrored at random.

    Every image ``(N, channels, height, width)`` has an offset and a flip of its own, and a square
    of zeros, if there is one. The draws are made on the CPU, so that a generator gives the same
    crops on every device.

    Args:
        margin: how many zeros are put around an image; the crop moves by up to as many pixels.
        flip: whether to mirror left and right, with probability one half; or which of the images
            to mirror, ``(N,)``.
        cutout: side of a square that is then set to zero (DeVries & Taylor, 2017); 0 for none. Its
            centre is a pixel of the image, each with the same probability, so that a part of the
            square may lie outside.
        generator: a CPU generator; by default PyTorch's own.
        first, total: the images are those from ``first`` on of a batch of ``total``, and are
            cropped and mirrored as in the whole batch.
    """
    if images.ndim != 4:
        raise InvalidInputError(
            f"images to augment must be (N, channels, height, width), got {tuple(images.shape)}"
        )
    for name, value in (("margin", margin), ("cutout", cutout)):
        if not isinstance(value, int) or value < 0:
            raise InvalidInputError(f"{name} must be an integer of 0 or more, got {value!r}")
    count, _, height, width = images.shape
    total = count if total is None else total
    part = slice(first, first + count)
    top, left = torch.randint(2 * margin + 1, (2, total, 1), generator=generator)[:, part]
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    if not isinstance(flip, Tensor):
        drawn = torch.rand(total, generator=generator)[part] if flip else torch.zeros(count)
        flip = drawn >= 0.5
    columns = torch.where(flip.unsqueeze(1), columns.flip(1), columns)
    which = torch.arange(count).reshape(-1, 1, 1)
    place = (which, rows.unsqueeze(2), columns.unsqueeze(1))
    image, row, column = (index.to(images.device) for index in place)
    padded = F.pad(images, (margin,) * 4)
    made = padded[image, :, row, column].permute(0, 3, 1, 2).contiguous()
    if cutout:
        across, down = (
            _interval(length, cutout, torch.randint(length, (total, 1), generator=generator)[part])
            for length in (width, height)
        )
        square = down.unsqueeze(2) & across.unsqueeze(1)
        made.masked_fill_(square.unsqueeze(1).to(images.device), 0)
    return made


def resized(images: Tensor, scale: float) -> Tensor:
    """Images whose sides are multiplied by a number below 1, by averages over neighbouring pixels.

    Sides are rounded, and at least one pixel. A scale of 1 gives the images themselves.
    """
    if scale == 1:
        return images
    sides = tuple(max(1, round(scale * side)) for side in images.shape[2:])
    return F.interpolate(images, sides, mode="bilinear", align_corners=False, antialias=True)


def _interval(length: int, size: int, centre: Tensor) -> Tensor:
    """Which of ``length`` places lie in intervals of ``size`` places about centres ``(N, 1)``."""
    place = torch.arange(length) - centre + size // 2
    return (place >= 0) & (place < size)

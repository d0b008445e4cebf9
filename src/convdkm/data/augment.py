"""Random crops and flips, drawn anew for every image."""

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
    generator: torch.Generator | None = None,
    first: int = 0,
    total: int | None = None,
) -> Tensor:
    """Each image cropped at random from itself with a margin of zeros, and mirrored at random.

    Every image ``(N, channels, height, width)`` has an offset and a flip of its own. The draws are
    made on the CPU, so that a generator gives the same crops on every device.

    Args:
        margin: how many zeros are put around an image; the crop moves by up to as many pixels.
        flip: whether to mirror left and right, with probability one half; or which of the images
            to mirror, ``(N,)``.
        generator: a CPU generator; by default PyTorch's own.
        first, total: the images are those from ``first`` on of a batch of ``total``, and are
            cropped and mirrored as in the whole batch.
    """
    if images.ndim != 4:
        raise InvalidInputError(
            f"images to augment must be (N, channels, height, width), got {tuple(images.shape)}"
        )
    if not isinstance(margin, int) or margin < 0:
        raise InvalidInputError(f"margin must be an integer of 0 or more, got {margin!r}")
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
    return padded[image, :, row, column].permute(0, 3, 1, 2).contiguous()

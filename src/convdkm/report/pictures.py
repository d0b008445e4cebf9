"""Pictures inside the page: images, patches and matrices as PNG data."""

from __future__ import annotations

import base64
import io
from functools import cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from convdkm.errors import InvalidInputError

LARGEST_MATRIX = 256
"""Rows of a matrix that are drawn; a larger one is averaged over blocks."""

# Both maps grow lighter from end to end, so that they are read in grey as well. The second passes
# through grey at its middle, which makes it one for signed numbers.
VIRIDIS = "440154 482475 414487 355f8d 2a788e 21918c 22a884 44bf70 7ad151 bddf26 fde725"
CIVIDIS = "00204d 00336f 39486b 575d6d 707173 8a8779 a69d75 c4b56c e4cf5b ffea46"


@cache
def colour_map(stops: str) -> np.ndarray:
    """256 colours between stops, ``(256, 3)`` bytes."""
    given = np.array([[int(stop[k : k + 2], 16) for k in (0, 2, 4)] for stop in stops.split()])
    places, wanted = np.linspace(0, 1, len(given)), np.linspace(0, 1, 256)
    channels = [np.interp(wanted, places, given[:, channel]) for channel in range(3)]
    return np.stack(channels, 1).round().astype(np.uint8)


def png(pixels: np.ndarray, stops: str | None = None) -> str:
    """Bytes ``(height, width)`` or ``(height, width, 3)`` as the address of a picture.

    With ``stops``, the bytes are indices of colours between them.
    """
    image, buffer = Image.fromarray(pixels), io.BytesIO()
    if stops is not None:
        image.putpalette(colour_map(stops).tobytes())
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def matrix_picture(matrix: Tensor, low: float, high: float, stops: str = VIRIDIS) -> str:
    """A matrix as a picture, one pixel an entry, coloured from ``low`` to ``high``."""
    values = _averaged(matrix.detach().double().cpu())
    span = high - low or 1.0
    index = ((values - low) / span * 255).clamp(0, 255).nan_to_num(0).round().to(torch.uint8)
    return png(index.numpy(), stops)


def ramp_picture(stops: str) -> str:
    """All colours of a map in a row, for its legend."""
    return png(np.arange(256, dtype=np.uint8)[None, :], stops)


def image_picture(image: Tensor) -> str:
    """An image ``(channels, height, width)`` with values from 0 to 1."""
    return png(_bytes(image))


def patch_pictures(patches: Tensor) -> list[str]:
    """Patches ``(P, channels, height, width)``, each on a scale on which zero is a middle grey."""
    if patches.ndim != 4 or patches.shape[1] not in (1, 3):
        raise InvalidInputError(
            "patches are drawn where they have 1 or 3 channels and two dimensions, got shape"
            f" {tuple(patches.shape)}"
        )
    patches = patches.detach().double().cpu()
    sizes = patches.abs().flatten(1).amax(1).tolist()
    return [
        png(_bytes(0.5 + 0.5 * patch / (size or 1.0)))
        for patch, size in zip(patches, sizes, strict=True)
    ]


def _bytes(image: Tensor) -> np.ndarray:
    scaled = (image.detach().double().cpu() * 255).round().clamp(0, 255).to(torch.uint8)
    if scaled.shape[0] == 1:
        return scaled[0].numpy()
    if scaled.shape[0] == 3:
        return np.ascontiguousarray(scaled.permute(1, 2, 0).numpy())
    return scaled.double().mean(0).to(torch.uint8).numpy()


def _averaged(matrix: Tensor) -> Tensor:
    factor = -(-max(matrix.shape) // LARGEST_MATRIX)
    if factor == 1:
        return matrix
    blocks = torch.nn.functional.avg_pool2d(matrix[None, None], factor, ceil_mode=True)
    return blocks[0, 0]

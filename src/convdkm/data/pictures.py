"""Picture files as tensors: one picture, and many of them.

Grey pictures have one channel, colour three. Transparent pixels are put on white, 16 bits scaled
like 8, a camera's rotation (EXIF) undone; of an animation the first picture counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from convdkm.data.dataset import shape_text
from convdkm.data.pixels import (
    check_channels,
    height_and_width,
    require_memory,
    resized,
    with_channels,
)
from convdkm.errors import InvalidInputError
from convdkm.storage.files import require_regular

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm"}
)
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # none that starts a program
_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)

MOST_PIXELS = 89_478_485
"""Of one picture: Pillow's own limit, which other libraries switch off."""
LARGE = 2**22
"""Pixels from which pictures are decoded one at a time, if there is memory for one."""
BYTES_PER_PIXEL = 24
"""While a picture is decoded: two copies of four bytes, and float32 of three channels and more."""
_LARGE_ONE = Lock()

Report = Callable[[str], None]


class UnreadableImageError(InvalidInputError):
    """A file that is not a picture, or a damaged one."""


@contextmanager
def without_remarks() -> Iterator[None]:
    """Keep Pillow's warnings of odd files from the user; entered by the main thread alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\b")
        yield


def picture_shape(path: Path) -> tuple[int, int, int]:
    """Channels, height and width of a picture file, turned upright; its pixels are not read."""
    with _opened(path) as image:
        width, height = image.size
        if image.getexif().get(_ORIENTATION) in _ON_ITS_SIDE:
            width, height = height, width
        return 1 if _is_grey(image) else 3, height, width


def read_picture(
    path: Path, size: tuple[int, int] | None = None, channels: int | None = None
) -> Tensor:
    """A picture file as float32 ``(channels, height, width)`` between 0 and 1.

    It is brought to ``size``, height and width, and to a number of channels, where these are given.
    """
    with _opened(path) as image:
        picture = picture_tensor(image).unsqueeze(0)
        return with_channels(resized(picture, size), channels)[0]


def picture_tensor(image: Image.Image) -> Tensor:
    """A Pillow image as float32 ``(channels, height, width)`` between 0 and 1."""
    grey = _is_grey(image)
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "F" or upright.mode.startswith("I"):
        return _deep_grey(upright).unsqueeze(0)
    if upright.has_transparency_data:
        upright = upright.convert("RGBA")
        white = Image.new("RGBA", upright.size, "white")
        upright = Image.alpha_composite(white, upright)
    pixels = np.array(upright.convert("L" if grey else "RGB"))
    planes = torch.from_numpy(pixels).reshape(*pixels.shape[:2], -1).permute(2, 0, 1)
    return planes.float().div_(255)


@without_remarks()
def read_pictures(
    paths: Sequence[Path],
    *,
    image_size: int | Sequence[int] | None = None,
    channels: int | None = None,
    skip_bad: bool = False,
    report: Report | None = None,
) -> tuple[Tensor, list[int]]:
    """Picture files as one tensor ``(N, channels, height, width)``, and which of them it holds.

    Pictures have one channel if all files are grey and three otherwise, unless ``channels`` says.
    An unreadable file is an error, or with ``skip_bad`` left out and named to ``report``.
    """
    check_channels(channels)
    size = height_and_width(image_size)
    shapes = {}
    for position, path in enumerate(paths):
        with leaving_out(path, skip_bad, report):
            shapes[position] = picture_shape(path)
    if not shapes:
        raise UnreadableImageError(f"none of {len(paths)} files is a picture that can be read")
    size = size or _common_size({paths[position]: shape for position, shape in shapes.items()})
    channels = channels or max(shape[0] for shape in shapes.values())
    require_memory(
        4 * len(shapes) * channels * prod(size),
        f"{paths[0].parent} and on: {len(shapes)} images {shape_text((channels, *size))}",
        "; make them smaller with image_size (--image-size)",
    )
    images = torch.empty(len(shapes), channels, *size)
    kept: list[int] = []
    for position in shapes:
        with leaving_out(paths[position], skip_bad, report):
            images[len(kept)] = read_picture(paths[position], size, channels)
            kept.append(position)
    if not kept:
        raise UnreadableImageError(f"none of {len(paths)} files is a picture that can be read")
    return images[: len(kept)], kept


@contextmanager
def leaving_out(path: Path, skip_bad: bool, report: Report | None) -> Iterator[None]:
    """An unreadable file is an error, or with ``skip_bad`` named to ``report`` and passed over."""
    try:
        yield
    except UnreadableImageError as error:
        if not skip_bad:
            raise UnreadableImageError(
                f"{error.message}; mend or remove the file, or leave such files out with"
                " skip_bad (--skip-bad)"
            ) from error
        if report is not None:
            report(f"left out: {error.message}")


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """An open picture; whatever the decoder raises becomes an error that names the file."""
    try:
        require_regular(path)
        with Image.open(path, formats=_FORMATS) as image:
            pixels = image.width * image.height
            if pixels > MOST_PIXELS:
                raise Image.DecompressionBombError(f"{image.width}×{image.height}")
            if pixels <= LARGE:
                yield image
                return
            with _LARGE_ONE:
                require_memory(BYTES_PER_PIXEL * pixels, "its pixels, decoded,")
                yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnreadableImageError(
            f"{path} claims more pixels than a picture can sensibly have ({error})"
        ) from error
    except UnidentifiedImageError as error:
        raise UnreadableImageError(f"{path} is not a picture, or a damaged one") from error
    except UnreadableImageError as error:
        raise UnreadableImageError(f"{path} {error.message}") from error
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise UnreadableImageError(f"{path} cannot be read as a picture: {error}") from error


def _is_grey(image: Image.Image) -> bool:
    if image.mode == "P":
        palette = np.array(image.getpalette("RGB") or [0, 0, 0]).reshape(-1, 3)
        return bool((palette == palette[:, :1]).all())
    return image.mode in ("1", "L", "LA", "La", "F") or image.mode.startswith("I")


def _deep_grey(image: Image.Image) -> Tensor:
    """Grey levels of more than 8 bits: integers count to 65535, real numbers to 1."""
    values = np.array(image).astype(np.float32)
    most = 1.0 if image.mode == "F" else 65535.0
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= most):
        raise UnreadableImageError(
            f"has grey levels from {low:g} to {high:g}, outside 0 to {most:g}; save it with 8 or"
            " 16 bits"
        )
    return torch.from_numpy(values / np.float32(most))


def _common_size(shapes: Mapping[Path, tuple[int, int, int]]) -> tuple[int, int]:
    """Height and width of all pictures; an error that names two where they differ."""
    (first, (_, *size)), *others = shapes.items()
    for path, (_, *other) in others:
        if other != size:
            raise InvalidInputError(
                f"the images differ in size (height×width): {first} is {shape_text(size)}, {path}"
                f" is {shape_text(other)}; give image_size (--image-size) to bring all to one size"
            )
    return size[0], size[1]

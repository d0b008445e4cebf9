"""Data sets from arrays, tensors and PyTorch datasets that are in memory already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from convdkm.checks import check_choice
from convdkm.data.dataset import Dataset
from convdkm.data.labels import coded_labels
from convdkm.errors import InvalidInputError

Layout = Literal["auto", "NHW", "NHWC", "NCHW"]
_USUAL_CHANNELS = (1, 3)
_WHITE = {torch.uint8: 255, torch.uint16: 65535}


def from_arrays(
    train_images: Any,
    train_labels: Any,
    test_images: Any = None,
    test_labels: Any = None,
    class_names: Sequence[str] | None = None,
    *,
    name: str = "",
    layout: Layout = "auto",
) -> Dataset:
    """A data set from NumPy arrays, PyTorch tensors or nested lists.

    Images are ``(N, height, width)``, ``(N, height, width, channels)`` or ``(N, channels, height,
    width)``: bytes, 16-bit integers, or real numbers between 0 and 1. Labels are integers or
    strings. Strings, and integers that skip a number, are sorted and become the class names,
    unless ``class_names`` fixes them. Images that are float32 already are not copied.

    Args:
        layout: the order of the axes, if the shape alone does not tell.
    """
    if (test_images is None) != (test_labels is None):
        missing = "test_images" if test_images is None else "test_labels"
        raise InvalidInputError(f"test images and test labels go together; {missing} is missing")
    train = image_tensor(train_images, "train_images", layout)
    if test_images is None:
        test, test_labels = train[:0], []
    else:
        test = image_tensor(test_images, "test_images", layout)
    train_codes, test_codes, names = coded_labels(train_labels, test_labels, class_names)
    return Dataset(train, train_codes, test, test_codes, len(names), name, names)


def from_torch(train: Any, test: Any = None, *, name: str = "") -> Dataset:
    """A data set from PyTorch datasets whose items are ``(image, label)``.

    Images are Pillow images, tensors or arrays; the names in ``train.classes`` are kept, where
    there are such. Everything is read into memory.
    """
    images, labels = _materialised(train, "train")
    test_images, test_labels = (None, None) if test is None else _materialised(test, "test")
    classes = getattr(train, "classes", None)
    numbered = classes is not None and all(isinstance(label, int) for label in labels)
    return from_arrays(
        images,
        labels,
        test_images,
        test_labels,
        class_names=classes if numbered else None,
        name=name,
        layout="NCHW",
    )


def image_tensor(images: Any, where: str, layout: Layout = "auto") -> Tensor:
    """Images of any layout and type as float32 ``(N, channels, height, width)``."""
    check_choice("layout", layout, Layout)
    tensor = _as_tensor(images, where)
    if layout == "auto":
        layout = _recognised(tuple(tensor.shape), where, from_torch=isinstance(images, Tensor))
    if tensor.ndim != len(layout):
        raise InvalidInputError(
            f"{where} has the shape {tuple(tensor.shape)}, which is not {layout}"
        )
    if layout == "NHW":
        tensor = tensor.unsqueeze(1)
    elif layout == "NHWC":
        tensor = tensor.permute(0, 3, 1, 2)
    return _scaled(tensor, where).contiguous()


def _as_tensor(images: Any, where: str) -> Tensor:
    if isinstance(images, Tensor):
        return images.detach().cpu()
    try:
        array = np.asarray(images)
        if not array.dtype.isnative or not array.flags.writeable:
            array = array.astype(array.dtype.newbyteorder("="))
        return torch.from_numpy(np.ascontiguousarray(array))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{where} is not an array of numbers: {error}") from error


def _recognised(shape: tuple[int, ...], where: str, *, from_torch: bool) -> Layout:
    if len(shape) == 3:
        return "NHW"
    if len(shape) != 4:
        raise InvalidInputError(
            f"{where} must be (N, height, width), (N, height, width, channels) or (N, channels,"
            f" height, width), got the shape {shape}"
        )
    first, last = shape[1] in _USUAL_CHANNELS, shape[3] in _USUAL_CHANNELS
    if first == last:
        if from_torch:
            return "NCHW"
        which = "both the second and the last" if first else "neither the second nor the last"
        raise InvalidInputError(
            f"{where} has the shape {shape}, where {which} axis can be the channels (1 or 3): say"
            " which with from_arrays(..., layout='NCHW') or 'NHWC'"
        )
    return "NCHW" if first else "NHWC"


def _scaled(images: Tensor, where: str) -> Tensor:
    if images.dtype in _WHITE:
        return images.float().div_(_WHITE[images.dtype])
    if images.dtype == torch.bool or images.is_floating_point():
        return images.float()
    raise InvalidInputError(
        f"{where} is of type {images.dtype}; give bytes (uint8, 0 to 255) or real numbers between"
        " 0 and 1"
    )


def _materialised(items: Any, part: str) -> tuple[Tensor, list[Any]]:
    """All images and labels of a map-style dataset."""
    if not hasattr(items, "__getitem__") or not hasattr(items, "__len__"):
        raise InvalidInputError(
            f"the {part} dataset must have a length and items, as torch.utils.data.Dataset does;"
            f" got {type(items).__name__}"
        )
    images: list[Tensor] = []
    labels: list[Any] = []
    for position in range(len(items)):
        where = f"item {position} of the {part} dataset"
        try:
            image, label = items[position]
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"{where} is not a pair (image, label): {error}") from error
        images.append(_item_image(image, where))
        labels.append(label.item() if isinstance(label, (Tensor, np.generic)) else label)
        if images[-1].shape != images[0].shape:
            raise InvalidInputError(
                f"{where} has the shape {tuple(images[-1].shape)}, but item 0"
                f" {tuple(images[0].shape)} (channels, height, width); bring all to one size"
            )
    if not images:
        raise InvalidInputError(f"the {part} dataset is empty")
    return torch.stack(images), labels


def _item_image(image: Any, where: str) -> Tensor:
    """One image as float32 ``(channels, height, width)``."""
    from PIL import Image

    from convdkm.data.pictures import picture_tensor

    if isinstance(image, Image.Image):
        return picture_tensor(image)
    if not isinstance(image, (Tensor, np.ndarray)):
        raise InvalidInputError(
            f"{where} holds a {type(image).__name__}, not a Pillow image, tensor or array"
        )
    return image_tensor(image[None], where)[0]

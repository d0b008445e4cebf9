"""The images of a comparison: for each size and seed the same for all methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from convdkm.choices import WhiteningChoice
from convdkm.data import Dataset, load
from convdkm.data.whitening import make_whitening
from convdkm.errors import InvalidInputError
from convdkm.lab.studies.comparison.folder import Scale
from convdkm.presets import preset
from convdkm.storage.files import plain_path
from convdkm.storage.tensor_file import save_tensors


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test images with their labels."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def save(self, path: Path) -> None:
        """Write a file, atomically."""
        save_tensors(path, vars(self), {})

    @classmethod
    def read(cls, path: Path) -> Split:
        """Read a file that :meth:`save` wrote."""
        from safetensors.torch import load_file

        with plain_path(path) as plain:
            return cls(**load_file(plain))


def load_images(
    scale: Scale, data_dir: str | None, report: Callable[[str], None] | None = None
) -> Dataset:
    """The data set of a comparison, with all test images or the same choice of them every time.

    A set that has no test part is split in the same way every time.
    """
    data = load(
        scale.dataset,
        data_dir=data_dir,
        image_size=scale.image_size,
        test_fraction=preset(scale.preset).config(scale.dataset).data.test_fraction,
        report=report,
    )
    return data if scale.test_size is None else data.subset(None, scale.test_size)


def check_sizes(data: Dataset, sizes: list[int | None]) -> list[int]:
    """Training sizes in order and each once; None stands for all images.

    Raises:
        InvalidInputError: there are not so many images, or not one of every class.
    """
    total, classes = len(data.train_images), len(data.train_labels.unique())
    found = sorted({total if size is None else size for size in sizes})
    if found[-1] > total:
        raise InvalidInputError(
            f"--train-size asks for {found[-1]:,} images, and {data.name} has {total:,} to train on"
        )
    if found[0] < classes:
        raise InvalidInputError(
            f"--train-size {found[0]} is less than one image for each of the {classes} classes"
        )
    return found


def drawn(data: Dataset, size: int, seed: int) -> Split:
    """So many training images, drawn by the seed, with the classes in their proportions."""
    part = data.subset(size, None, seed)
    return Split(part.train_images, part.train_labels, part.test_images, part.test_labels)


@torch.no_grad()
def whitened(split: Split, kind: WhiteningChoice, epsilon: float) -> Split:
    """The images as methods see them; the whitening is fitted to the training images."""
    whitening = make_whitening(kind, epsilon).fit(split.train_images)
    train, test = whitening(split.train_images), whitening(split.test_images)
    return replace(split, train_images=train, test_images=test)

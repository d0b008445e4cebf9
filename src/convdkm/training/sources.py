"""Where the images of a run come from, and which of them it uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from convdkm.config import DataConfig, RunConfig
from convdkm.data import Dataset, from_arrays, from_torch, load
from convdkm.data.registry import is_known, known_set
from convdkm.errors import InvalidInputError


def load_dataset(config: RunConfig, report: Callable[[str], None] | None = None) -> Dataset:
    """The data set that a configuration names."""
    data = config.data
    return load(
        data.dataset,
        data_dir=data.data_dir,
        image_size=data.image_size,
        channels=data.channels,
        skip_bad=data.skip_bad,
        test_fraction=data.test_fraction,
        report=report,
    )


def prepared(dataset: Dataset, config: DataConfig) -> tuple[Dataset, tuple[Tensor, Tensor] | None]:
    """The part of a data set that a run uses, and what it holds out for validation."""
    if config.train_size is not None or config.test_size is not None:
        dataset = dataset.subset(config.train_size, config.test_size)
    if not dataset.has_test:
        dataset = dataset.with_split(config.test_fraction)
    if not config.validation:
        return dataset, None
    dataset, images, labels = dataset.hold_out(config.validation)
    return dataset, (images, labels)


def as_dataset(data: Any) -> tuple[Dataset | None, str]:
    """Images from Python as a data set, and what to call it; None for one that has to be loaded."""
    if isinstance(data, (str, Path)):
        name = str(data)
        return None, known_set(name).name if is_known(name) else name
    if isinstance(data, Dataset):
        return data, data.name or "images"
    if isinstance(data, (tuple, list)) and len(data) in (2, 4):
        return from_arrays(*data), "arrays"
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return from_torch(data), type(data).__name__
    raise InvalidInputError(
        "data must be a name, a path, a Dataset, (images, labels), (images, labels, test images,"
        f" test labels) or a PyTorch dataset; got {type(data).__name__}"
    )

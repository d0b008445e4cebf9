"""Data sets as tensors, the whitening that kernel methods want, and augmentation.

Names are imported when they are first used, so that listing the known sets costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convdkm.data.arrays import from_arrays, from_torch
    from convdkm.data.augment import random_crop_flip
    from convdkm.data.cifar import load_cifar10, load_cifar100
    from convdkm.data.dataset import Dataset
    from convdkm.data.digits import load_digits
    from convdkm.data.download import DownloadError, fetch
    from convdkm.data.idx import load_idx
    from convdkm.data.image_folder import load_image_folder, load_images
    from convdkm.data.loading import Verification, load, verify
    from convdkm.data.npz import load_npz
    from convdkm.data.registry import (
        KNOWN_SETS,
        KnownSet,
        MissingDataError,
        data_directory,
        find,
        known_set,
    )
    from convdkm.data.whitening import ZCA, NoWhitening, Standardise, Whitening, make_whitening

_HOMES = {
    "arrays": ("from_arrays", "from_torch"),
    "augment": ("random_crop_flip",),
    "cifar": ("load_cifar10", "load_cifar100"),
    "dataset": ("Dataset",),
    "digits": ("load_digits",),
    "download": ("DownloadError", "fetch"),
    "idx": ("load_idx",),
    "image_folder": ("load_image_folder", "load_images"),
    "loading": ("Verification", "load", "verify"),
    "npz": ("load_npz",),
    "registry": (
        "KNOWN_SETS",
        "KnownSet",
        "MissingDataError",
        "data_directory",
        "find",
        "known_set",
    ),
    "whitening": ("ZCA", "NoWhitening", "Standardise", "Whitening", "make_whitening"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "KNOWN_SETS",
    "ZCA",
    "Dataset",
    "DownloadError",
    "KnownSet",
    "MissingDataError",
    "NoWhitening",
    "Standardise",
    "Verification",
    "Whitening",
    "data_directory",
    "fetch",
    "find",
    "from_arrays",
    "from_torch",
    "known_set",
    "load",
    "load_cifar10",
    "load_cifar100",
    "load_digits",
    "load_idx",
    "load_image_folder",
    "load_images",
    "load_npz",
    "make_whitening",
    "random_crop_flip",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

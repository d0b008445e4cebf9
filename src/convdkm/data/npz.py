"""Data sets in NumPy's ``.npz`` archives."""

from __future__ import annotations

import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.lib.format as npy

from convdkm.data.arrays import from_arrays
from convdkm.data.dataset import Dataset
from convdkm.data.pixels import require_memory
from convdkm.errors import InvalidInputError
from convdkm.storage.files import require_regular
from convdkm.storage.text import name_text

_STYLES = (
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
    ("images", "labels"),
)


def load_npz(path: str | Path) -> Dataset:
    """A data set from an ``.npz`` file; nothing in it is unpickled.

    It holds ``train_images`` and ``train_labels``, or ``x_train`` and ``y_train``, each perhaps
    with a test part, or ``images`` and ``labels``; and perhaps ``class_names``. Layouts, types and
    labels are those of :func:`~convdkm.data.from_arrays`.
    """
    path = Path(path)
    try:
        require_regular(path)
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise InvalidInputError(f"{path} is not an .npz archive, or was cut short")
            with zipfile.ZipFile(file) as archive:
                arrays = _arrays(path, archive)
    except InvalidInputError:
        raise
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInputError(f"{path} cannot be read: {_reason(error)}") from error
    try:
        return from_arrays(**arrays, name=name_text(path.stem))
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error.message}") from error


def _arrays(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    """The arrays of the archive under the names of :func:`from_arrays`."""
    members = {name.removesuffix(".npy"): name for name in archive.namelist()}
    style = next((style for style in _STYLES if members.keys() >= set(style[:2])), None)
    if style is None:
        expected = "; ".join(", ".join(style) for style in _STYLES)
        found = ", ".join(members) or "no arrays"
        raise InvalidInputError(
            f"{path} holds {found}, but must hold one of: {expected} (the test part may be left"
            " out)"
        )
    keys = [key for key in style if key in members]
    if len(keys) % 2:
        missing = next(key for key in style if key not in members)
        raise InvalidInputError(
            f"{path} has {', '.join(keys)}, but no {missing}: images and labels go together"
        )
    wanted = dict(zip(_STYLES[0], keys, strict=False))
    if "class_names" in members:
        wanted["class_names"] = "class_names"
    needed = 0
    for name, key in wanted.items():
        with archive.open(members[key]) as member:
            needed += _bytes_of(member, images=name.endswith("images"))
    require_memory(needed, f"{path}: its images")
    arrays = {}
    for name, key in wanted.items():
        with archive.open(members[key]) as member:
            arrays[name] = npy.read_array(member, allow_pickle=False)
    if "class_names" in arrays:
        names = arrays["class_names"]
        if names.dtype.kind not in "US" or names.ndim != 1:
            raise InvalidInputError(f"{path}: class_names must be a list of strings")
        arrays["class_names"] = np.char.decode(names) if names.dtype.kind == "S" else names
    return arrays


def _bytes_of(member: IO[bytes], *, images: bool) -> int:
    """Bytes that an array takes as it is, and beside that as float32 if it holds images."""
    version = npy.read_magic(member)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(member)
    return prod(shape) * (dtype.itemsize + 4 * images)


def _reason(error: Exception) -> str:
    if "allow_pickle" in str(error):
        return "it holds arrays of Python objects; save numbers, and labels as integers or strings"
    return str(error) or type(error).__name__

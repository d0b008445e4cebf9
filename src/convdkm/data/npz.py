"""Data sets in NumPy's ``.npz`` archives."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from convdkm.data.arrays import from_arrays
from convdkm.data.dataset import Dataset
from convdkm.data.pixels import check_memory
from convdkm.errors import InvalidInputError
from convdkm.text import name_text

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
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise InvalidInputError(f"{path} is not an .npz archive, or was cut short")
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                unpacked = sum(entry.file_size for entry in archive.infolist())
                check_memory(1, (unpacked // 4,), str(path))
            file.seek(0)
            with np.load(file, allow_pickle=False) as content:
                arrays = _arrays(path, content)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"{path} cannot be read: {_reason(error)}") from error
    try:
        return from_arrays(**arrays, name=name_text(path.stem))
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error.message}") from error


def _arrays(path: Path, content: Any) -> dict[str, Any]:
    """The arrays of the archive under the names of :func:`from_arrays`."""
    for style in _STYLES:
        present = [key for key in style if key in content]
        if not set(style[:2]) <= set(present):
            continue
        if len(present) % 2:
            missing = next(key for key in style if key not in content)
            raise InvalidInputError(
                f"{path} has {', '.join(present)}, but no {missing}: images and labels go together"
            )
        arrays = {name: content[key] for name, key in zip(_STYLES[0], present, strict=False)}
        if "class_names" in content:
            names = content["class_names"]
            if names.dtype.kind not in "US" or names.ndim != 1:
                raise InvalidInputError(f"{path}: class_names must be a list of strings")
            arrays["class_names"] = np.char.decode(names) if names.dtype.kind == "S" else names
        return arrays
    expected = "; ".join(", ".join(style) for style in _STYLES)
    raise InvalidInputError(
        f"{path} holds {', '.join(content) or 'no arrays'}, but must hold one of: {expected} (the"
        " test part may be left out)"
    )


def _reason(error: Exception) -> str:
    if "allow_pickle" in str(error):
        return "it holds arrays of Python objects; save numbers, and labels as integers or strings"
    return str(error) or type(error).__name__

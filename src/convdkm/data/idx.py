"""MNIST and Fashion-MNIST: the IDX format, gzipped or not.

An IDX file is a magic number ``00 00 08 d`` (08: bytes; d: the number of axes), d sizes of four
bytes each, and the entries.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from convdkm.data.arrays import from_arrays
from convdkm.data.checksums import md5_of_bytes
from convdkm.data.dataset import Dataset, shape_text
from convdkm.data.pixels import require_memory
from convdkm.data.registry import KNOWN_SETS, KnownSet, idx_file, known_set, locate
from convdkm.errors import InvalidInputError
from convdkm.storage.files import require_regular

_GZIP_MAGIC = b"\x1f\x8b"
_MOST_BYTES = 2**32

Array = np.ndarray[Any, Any]


def load_idx(name: str, data_dir: str | Path | None = None) -> Dataset:
    """MNIST (``"mnist"``) or Fashion-MNIST (``"fashion-mnist"``) from their four files."""
    known = known_set(name)
    if known.format != "idx":
        raise InvalidInputError(f"{known.title} is not made of IDX files")
    return read_idx_set(locate(name, data_dir), known)


def read_idx_set(folder: Path, known: KnownSet) -> Dataset:
    """Read the four files of a set from a folder."""
    train, test = (
        _read_pair(folder, known, *parts) for parts in (known.parts[:2], known.parts[2:])
    )
    _check_identity(folder, train[1], known)
    return from_arrays(*train, *test, known.class_names, name=known.name)


def read_idx(path: str | Path, axes: int) -> Array:
    """The bytes of an IDX file with this number of axes."""
    with _opened(Path(path)) as file:
        header = file.read(4 + 4 * axes)
        if header[:4] != bytes((0, 0, 8, axes)):
            raise InvalidInputError(
                f"{path} is not an IDX file of bytes with {axes} axes: it starts with"
                f" {header[:4].hex(' ') or 'nothing'}, not 00 00 08 {axes:02x}"
            )
        if len(header) < 4 + 4 * axes:
            raise InvalidInputError(f"{path} was cut short: it ends in its header; fetch it again")
        shape = struct.unpack(f">{axes}I", header[4:])
        size, announced = prod(shape), shape_text(shape)
        if size > _MOST_BYTES:
            raise InvalidInputError(f"{path} claims {size} bytes: its header is damaged")
        require_memory(5 * size, f"{path}: its {announced} bytes, and as many numbers,")
        content = file.read(size)
        if len(content) < size:
            raise InvalidInputError(
                f"{path} was cut short: its header announces {announced} bytes, but only"
                f" {len(content)} of {size} are there; fetch it again"
            )
        if file.read(1):
            raise InvalidInputError(
                f"{path} has more bytes than its header announces ({announced})"
            )
        return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def idx_checksum(path: Path) -> str:
    """MD5 of an IDX file, of its content if it is gzipped."""
    with _opened(path) as file:
        return md5_of_bytes(file.read())


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The content of a file, unpacked if it is gzipped; errors of reading name the file."""
    require_regular(path)
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidInputError(
            f"{path} is damaged or was cut short: {error}; fetch it again"
        ) from error
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error}") from error


def _read_pair(
    folder: Path, known: KnownSet, images_part: str, labels_part: str
) -> tuple[Array, Array]:
    """Images and labels that belong together."""
    images_file, labels_file = idx_file(folder, images_part), idx_file(folder, labels_part)
    if images_file is None or labels_file is None:
        missing = images_part if images_file is None else labels_part
        raise InvalidInputError(f"{folder} does not hold {missing} of {known.title}")
    images, labels = read_idx(images_file, axes=3), read_idx(labels_file, axes=1)
    if images.shape[1:] != known.shape[1:]:
        raise InvalidInputError(
            f"{images_file} has images {shape_text(images.shape[1:])}, but those of {known.title}"
            f" are {shape_text(known.shape[1:])}"
        )
    if len(images) != len(labels):
        raise InvalidInputError(
            f"{images_file} has {len(images)} images, but {labels_file} has {len(labels)} labels"
        )
    if len(labels) and labels.max() >= known.num_classes:
        raise InvalidInputError(
            f"{labels_file} has the label {labels.max()}, but those of {known.title} end at"
            f" {known.num_classes - 1}"
        )
    return images, labels


def _check_identity(folder: Path, train_labels: Array, known: KnownSet) -> None:
    """MNIST and Fashion-MNIST have the same file names: do not take one for the other."""
    content = struct.pack(">4BI", 0, 0, 8, 1, len(train_labels)) + train_labels.tobytes()
    checksum = md5_of_bytes(content)
    for other in KNOWN_SETS.values():
        if other.format == "idx" and other is not known and other.files[1].unpacked_md5 == checksum:
            raise InvalidInputError(f"{folder} holds {other.title}, not {known.title}")

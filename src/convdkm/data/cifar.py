"""CIFAR-10 and CIFAR-100 from their original files: a folder of pickles, or the archive of it."""

from __future__ import annotations

import pickle
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from convdkm.data.arrays import from_arrays
from convdkm.data.dataset import Dataset
from convdkm.data.registry import KnownSet, known_set, locate
from convdkm.data.unpickle import unpickle
from convdkm.errors import InvalidInputError

_META = {"cifar10": ("batches.meta", "label_names"), "cifar100": ("meta", "fine_label_names")}
_LABELS = {"cifar10": "labels", "cifar100": "fine_labels"}
_MOST_BYTES = 2**28
"""Of one file; the largest, of CIFAR-100, has 1.55e8."""
_MOST_HEADER_BYTES = 2**20

Array = np.ndarray[Any, Any]


def load_cifar10(data_dir: str | Path | None = None) -> Dataset:
    """CIFAR-10: ``data_dir`` holds ``cifar-10-batches-py`` or ``cifar-10-python.tar.gz``."""
    return read_cifar(locate("cifar10", data_dir), known_set("cifar10"))


def load_cifar100(data_dir: str | Path | None = None) -> Dataset:
    """CIFAR-100 with its 100 fine labels: ``data_dir`` holds the folder or the archive."""
    return read_cifar(locate("cifar100", data_dir), known_set("cifar100"))


def read_cifar(place: Path, known: KnownSet) -> Dataset:
    """Read a folder of batches, or the archive that holds one."""
    meta, names_key = _META[known.name]
    batches: dict[str, tuple[Array, Array]] = {}
    class_names = known.class_names
    for name, content in _files(place, known, {*known.parts, meta}):
        where = f"{place}: {name}"
        if name == meta:
            class_names = _class_names(where, content, names_key, known)
        else:
            batches[name] = _batch(where, content, known)
    missing = [name for name in known.parts if name not in batches]
    if missing:
        raise InvalidInputError(f"{place} does not hold {', '.join(missing)} of {known.title}")

    def part(names: tuple[str, ...]) -> tuple[Array, Array]:
        images, labels = zip(*(batches[name] for name in names), strict=True)
        return np.concatenate(images).reshape(-1, *known.shape), np.concatenate(labels)

    train, test = part(known.parts[:-1]), part(known.parts[-1:])
    return from_arrays(*train, *test, class_names, name=known.name, layout="NCHW")


def _files(place: Path, known: KnownSet, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the wanted files; an archive is read without unpacking it."""
    if place.is_dir():
        for name in sorted(wanted):
            if (place / name).is_file():
                try:
                    _check_size(place / name, (place / name).stat().st_size, known)
                    yield name, (place / name).read_bytes()
                except OSError as error:
                    raise InvalidInputError(f"{place / name} cannot be read: {error}") from error
        return
    try:
        with tarfile.open(place, "r:*", tarinfo=_Member) as archive:
            for member in archive:
                folder, _, name = member.name.removeprefix("./").rpartition("/")
                if folder == known.unpacked and name in wanted and member.isfile():
                    _check_size(f"{place}: {member.name}", member.size, known)
                    content = archive.extractfile(member)
                    assert content is not None, "a regular file has content"
                    with content:
                        yield name, content.read()
    except (OSError, tarfile.TarError, EOFError, zlib.error) as error:
        raise InvalidInputError(
            f"{place} cannot be read as an archive: {error}. If its download was cut short, fetch"
            f" it again with `convdkm data fetch {known.name} --force`"
        ) from error


class _Member(tarfile.TarInfo):
    """An entry of an archive; long names and the like, which are read at once, stay short."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: Any, errors: Any) -> Any:
        member = super().frombuf(buf, encoding, errors)
        if not member.isfile() and member.size > _MOST_HEADER_BYTES:
            raise InvalidInputError(
                f"an entry of an archive claims a header of {member.size} bytes"
            )
        return member


def _check_size(where: object, size: int, known: KnownSet) -> None:
    if size > _MOST_BYTES:
        raise InvalidInputError(f"{where} has {size} bytes, far more than a file of {known.title}")


def _entry(content: Any, key: str) -> Any:
    """An entry of a dictionary that Python 2 (bytes) or Python 3 (strings) wrote."""
    if not isinstance(content, dict):
        raise ValueError("it is not a dictionary")
    for name in (key.encode(), key):
        if name in content:
            return content[name]
    raise ValueError(f"it has no entry {key!r}")


def _batch(where: str, content: bytes, known: KnownSet) -> tuple[Array, Array]:
    """Pixels ``(N, 3072)`` and labels ``(N,)`` of a batch."""
    try:
        batch = unpickle(content)
        pixels, labels = _entry(batch, "data"), _entry(batch, _LABELS[known.name])
        width = int(np.prod(known.shape))
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8:
            raise ValueError("its data are not an array of bytes")
        if pixels.ndim != 2 or pixels.shape[1] != width:
            raise ValueError(f"its data have the shape {pixels.shape}, not (N, {width})")
        if not isinstance(labels, np.ndarray):
            if not isinstance(labels, list) or not all(type(label) is int for label in labels):
                raise ValueError("its labels are not a list of integers")
            labels = np.array(labels, dtype=np.int64)
        if labels.dtype.kind not in "iu" or labels.shape != (len(pixels),):
            raise ValueError(f"it has {len(pixels)} images but labels of shape {labels.shape}")
        if len(labels) and not (labels.min() >= 0 and labels.max() < known.num_classes):
            raise ValueError(
                f"its labels run from {labels.min()} to {labels.max()}, not from 0 to"
                f" {known.num_classes - 1}"
            )
    except (pickle.UnpicklingError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"{where} is not a batch of {known.title}: {error}") from error
    return pixels, labels.astype(np.int64)


def _class_names(where: str, content: bytes, key: str, known: KnownSet) -> tuple[str, ...]:
    try:
        names = _entry(unpickle(content), key)
        if not all(isinstance(name, (bytes, str)) for name in names):
            raise ValueError("its names are not all text")
        texts = tuple(name.decode() if isinstance(name, bytes) else name for name in names)
        if len(texts) != known.num_classes:
            raise ValueError(f"it names {len(texts)} classes, not {known.num_classes}")
    except (pickle.UnpicklingError, ValueError, TypeError) as error:
        raise InvalidInputError(
            f"{where} does not name the classes of {known.title}: {error}"
        ) from error
    return texts

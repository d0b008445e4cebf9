"""Loading a data set by its name or path, and checking one that is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from convdkm.data.checksums import md5_of_file
from convdkm.data.registry import KnownSet, idx_file, is_known, known_set, locate, require_path
from convdkm.errors import InvalidInputError
from convdkm.storage.text import named_path

if TYPE_CHECKING:
    from convdkm.data.dataset import Dataset

Report = Callable[[str], None]


def load(
    source: str | Path,
    *,
    data_dir: str | Path | None = None,
    image_size: int | Sequence[int] | None = None,
    channels: int | None = None,
    skip_bad: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
    report: Report | None = None,
) -> Dataset:
    """A data set by its name (``"cifar10"``), or from a folder of pictures or an ``.npz`` file.

    Args:
        source: a known name, whatever its case and punctuation; or a path.
        data_dir: where known sets lie; by default ``$CONVDKM_DATA`` or a folder of the user's.
        image_size: side of a square, or height and width, to which images are brought.
        channels: 1 for grey, 3 for colour; by default as the images are.
        skip_bad: leave unreadable picture files out instead of raising.
        test_fraction: share of the images that becomes the test part where there is none, drawn
            by ``seed`` and stratified by class; with 0 the set stays without one.
        report: called with a line of text for whatever is left out or made up.
    """
    from convdkm.data.pixels import check_channels, height_and_width, resized, with_channels

    check_channels(channels)
    size = height_and_width(image_size)
    if not 0 <= test_fraction < 1:
        raise InvalidInputError(
            f"test_fraction must be at least 0 and below 1, got {test_fraction}"
        )
    if isinstance(source, str) and is_known(source):
        data = _load_known(known_set(source), data_dir)
    elif (place := named_path(source)).is_dir():
        from convdkm.data.image_folder import load_image_folder

        data = load_image_folder(
            place, image_size=size, channels=channels, skip_bad=skip_bad, report=report
        )
    else:
        from convdkm.data.npz import load_npz

        require_path(place, str(place))
        if place.suffix.lower() != ".npz":
            raise InvalidInputError(f"{place} is neither a folder of images nor an .npz file")
        data = load_npz(place)
    shape = data.image_shape
    if (channels or shape[0], *(size or shape[1:])) != shape:
        train, test = (
            replace(part, images=resized(with_channels(part.images, channels), size))
            for part in (data.train.with_origins(), data.test.with_origins())
        )
        data = data.with_parts(train, test)
    if not data.has_test and test_fraction > 0:
        data = data.with_split(test_fraction, seed)
        if report is not None:
            report(
                f"{data.name} has no test part: {len(data.test_images)} images, drawn by seed"
                f" {seed}, are kept for it"
            )
    return data


@dataclass(frozen=True)
class Verification:
    """What was found when a data set was read to the end."""

    name: str
    place: Path
    train_size: int
    test_size: int
    notes: tuple[str, ...]
    """Ways in which it differs from the published files, which need not be faults."""


def verify(name: str, data_dir: str | Path | None = None) -> Verification:
    """Read a known set to the end, and compare it with what was published.

    Damaged files raise. Other checksums or sizes are told in the notes: people repack files.
    """
    known = known_set(name)
    place = locate(name, data_dir)
    data = _load_known(known, data_dir)
    sizes = len(data.train), len(data.test)
    notes = [
        f"{here} {part} images, where {known.title} has {published}"
        for part, here, published in (
            ("training", sizes[0], known.train_size),
            ("test", sizes[1], known.test_size),
        )
        if here != published
    ]
    return Verification(known.name, place, *sizes, (*notes, *_other_checksums(known, place)))


def _load_known(known: KnownSet, data_dir: str | Path | None) -> Dataset:
    if known.format == "embedded":
        from convdkm.data.digits import load_digits

        return load_digits()
    place = locate(known.name, data_dir)
    if known.format == "idx":
        from convdkm.data.idx import read_idx_set

        return read_idx_set(place, known)
    from convdkm.data.cifar import read_cifar

    return read_cifar(place, known)


def _other_checksums(known: KnownSet, place: Path) -> Iterator[str]:
    """Files whose content is not the published one, as notes."""
    if known.format == "idx":
        from convdkm.data.idx import idx_checksum

        for part, official in zip(known.parts, known.files, strict=True):
            file = idx_file(place, part)
            if file is not None and idx_checksum(file) != official.unpacked_md5:
                yield f"the content of {file} differs from the published file's (MD5)"
    elif place.is_file() and md5_of_file(place) != known.files[0].md5:
        yield f"{place} differs from the published archive (MD5)"

"""Folders of pictures: a data set with a folder for each class, or pictures to classify."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from convdkm.data.checksums import digest_of_file
from convdkm.data.dataset import Dataset, Origin, Part
from convdkm.data.pictures import SUFFIXES, Report, read_pictures
from convdkm.data.registry import KNOWN_SETS, find
from convdkm.errors import InvalidInputError
from convdkm.storage.text import name_text

_LAYOUT = "expected FOLDER/train/CLASS/*.png and FOLDER/test/CLASS/*.png, or FOLDER/CLASS/*.png"
_LOOKED_FOR = f"looked for {', '.join(sorted(SUFFIXES))}"


def load_image_folder(
    folder: str | Path,
    *,
    image_size: int | Sequence[int] | None = None,
    channels: int | None = None,
    skip_bad: bool = False,
    report: Report | None = None,
) -> Dataset:
    """A data set whose classes are folders of pictures.

    ``folder`` holds ``train`` and perhaps ``test``, each with a folder for every class; or the
    folders of the classes themselves, and then the set has no test part. Classes are sorted by
    name, or by number if all names are numbers.

    Args:
        image_size: side of a square, or height and width, to which pictures are brought.
        channels: 1 for grey, 3 for colour; by default grey if all files are grey.
        skip_bad: leave unreadable files out instead of raising.
        report: called with a line of text for whatever is left out.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InvalidInputError(f"{root} is not a folder; {_LAYOUT}")
    if (root / "train").is_dir():
        train = _by_class(root / "train")
        test = _by_class(root / "test") if (root / "test").is_dir() else {}
        others = ", ".join(sorted({*_folders(root)} - {"train", "test"}))
        if others and report is not None:
            report(f"left out: the folders {others} of {root}, beside train and test")
    else:
        train, test = _by_class(root), {}
    names = _sorted_names(train)
    unseen = [name for name in _sorted_names(test) if name not in train]
    if unseen:
        raise InvalidInputError(
            f"{root / 'test'} has classes that {root / 'train'} lacks: {', '.join(unseen)}"
        )
    if len(names) < 2:
        raise InvalidInputError(f"{root} has one class alone, {names[0]!r}; {_LAYOUT}")
    listed = [
        (path, label, is_test)
        for part, is_test in ((train, False), (test, True))
        for label, name in enumerate(names)
        for path in part.get(name, [])
    ]
    images, kept = read_pictures(
        [path for path, _, _ in listed],
        image_size=image_size,
        channels=channels,
        skip_bad=skip_bad,
        report=report,
    )
    files, numbers, of_test = zip(*(listed[position] for position in kept), strict=True)
    labels, count = torch.tensor(numbers), of_test.count(False)
    origins = tuple(Origin(f.relative_to(root).as_posix(), digest_of_file(f)) for f in files)
    train_part, test_part = (
        Part(images[chosen], labels[chosen], origins[chosen])
        for chosen in (slice(count), slice(count, None))
    )
    class_names = tuple(map(name_text, names))
    return Dataset.of(train_part, test_part, class_names, name_text(root.resolve().name))


def load_images(
    source: str | Path | Iterable[str | Path],
    *,
    image_size: int | Sequence[int] | None = None,
    channels: int | None = None,
    skip_bad: bool = False,
    report: Report | None = None,
) -> tuple[Tensor, list[Path]]:
    """Pictures without labels ``(N, channels, height, width)``, and the files they come from.

    ``source`` is a file or a folder, or several; folders are searched to the bottom. The options
    are those of :func:`load_image_folder`.
    """
    paths = list(map(Path, picture_files(source)))
    images, kept = read_pictures(
        paths, image_size=image_size, channels=channels, skip_bad=skip_bad, report=report
    )
    return images, [paths[position] for position in kept]


def picture_files(source: str | Path | Iterable[str | Path]) -> list[str]:
    """Paths of pictures: files as they are given, and folders searched to the bottom and sorted."""
    sources = [source] if isinstance(source, (str, Path)) else list(source)
    paths: list[str] = []
    for path in map(Path, sources):
        if path.is_dir():
            found = _found(path)
            if not found:
                raise InvalidInputError(f"no picture found in {path} ({_LOOKED_FOR})")
            paths.extend(found)
        elif path.exists():
            paths.append(str(path))
        else:
            raise InvalidInputError(f"there is no file or folder {path}")
    if not paths:
        raise InvalidInputError("no picture was given")
    return paths


def _by_class(folder: Path) -> dict[str, list[Path]]:
    """Pictures of every class of a folder of classes."""
    classes = _folders(folder)
    if not classes:
        raise InvalidInputError(f"{folder} has no folders of classes; {_LAYOUT}{_hint(folder)}")
    pictures = {name: list(map(Path, _found(folder / name))) for name in classes}
    empty = [folder / name for name in _sorted_names(pictures) if not pictures[name]]
    if empty:
        raise InvalidInputError(
            f"no picture found in {', '.join(map(str, empty[:5]))} ({_LOOKED_FOR});"
            f" {_LAYOUT}{_hint(folder)}"
        )
    return pictures


def _found(folder: Path) -> list[str]:
    """Every picture file below a folder, sorted; hidden files and folders are left alone."""
    found = []
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        pictures = (name for name in files if os.path.splitext(name)[1].lower() in SUFFIXES)
        found += [os.path.join(here, name) for name in pictures if not _is_hidden(name)]
    # Compared name by name, as paths are: what separates names comes before all else.
    return sorted(found, key=lambda path: path.replace(os.sep, "\0"))


def _folders(folder: Path) -> list[str]:
    """The names of the folders in a folder, but for hidden ones."""
    return [path.name for path in folder.iterdir() if path.is_dir() and not _is_hidden(path.name)]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _sorted_names(names: Iterable[str]) -> list[str]:
    names = list(names)
    if all(name.isascii() and name.isdigit() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _hint(folder: Path) -> str:
    """What to say of a folder that holds a known set in its own format."""
    for known in KNOWN_SETS.values():
        place = find(known.name, folder)
        if place is not None and place.is_relative_to(folder):
            return (
                f". {place} holds {known.title}: name the data set {known.name} and give data_dir"
                f" (--data-dir) {folder}"
            )
    return ""

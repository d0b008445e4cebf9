"""The data sets that are known by name: what they are, where they come from, where they lie.

Nothing slow is imported here, so that a program can list them at once.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from convdkm.errors import InvalidInputError
from convdkm.storage.text import name_text, named_path

Format = Literal["embedded", "idx", "cifar"]

DATA_VARIABLE = "CONVDKM_DATA"


class MissingDataError(InvalidInputError):
    """A data set that is nowhere on this machine."""


@dataclass(frozen=True)
class OfficialFile:
    """A file as it is published; ``unpacked_md5`` is that of the content of a ``.gz``."""

    name: str
    size: int
    md5: str
    unpacked_md5: str | None = None


@dataclass(frozen=True)
class KnownSet:
    """A data set known by name.

    ``folders`` are looked in below the data directory, the first being where downloads go;
    ``system_folders`` are looked in after them. ``parts`` are the files that make up the set, and
    ``unpacked`` is the folder that an archive holds them in.
    """

    name: str
    title: str
    format: Format
    train_size: int
    test_size: int
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    base_url: str = ""
    files: tuple[OfficialFile, ...] = ()
    folders: tuple[str, ...] = ()
    system_folders: tuple[str, ...] = ()
    unpacked: str = ""
    parts: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def download_size(self) -> int:
        """Bytes of all files as published."""
        return sum(file.size for file in self.files)


_DIGITS = tuple("0123456789")
_CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
_OBJECTS = "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"
_IDX_PARTS = ("train-images", "train-labels", "t10k-images", "t10k-labels")
_MNISTS: dict[str, Any] = {
    "format": "idx",
    "train_size": 60_000,
    "test_size": 10_000,
    "shape": (1, 28, 28),
    "parts": _IDX_PARTS,
}
_CIFARS: dict[str, Any] = {
    "format": "cifar",
    "train_size": 50_000,
    "test_size": 10_000,
    "shape": (3, 32, 32),
    "base_url": "https://www.cs.toronto.edu/~kriz/",
    "folders": (".",),
}


def _idx_files(*details: tuple[int, str, str]) -> tuple[OfficialFile, ...]:
    names = (f"{part}-idx{3 if 'images' in part else 1}-ubyte.gz" for part in _IDX_PARTS)
    return tuple(OfficialFile(name, *detail) for name, detail in zip(names, details, strict=True))


_TABLE = (
    KnownSet("digits", "Handwritten digits", "embedded", 1437, 360, (1, 8, 8), _DIGITS),
    KnownSet(
        name="mnist",
        title="MNIST",
        **_MNISTS,
        class_names=_DIGITS,
        base_url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        files=_idx_files(
            (9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
            (28881, "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
            (1648877, "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
            (4542, "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
        ),
        folders=("MNIST/raw", "MNIST", "mnist", "."),
    ),
    KnownSet(
        name="fashion-mnist",
        title="Fashion-MNIST",
        **_MNISTS,
        class_names=tuple(_CLOTHES.split(",")),
        base_url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        files=_idx_files(
            (26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
            (29515, "25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
            (4422102, "bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
            (5148, "bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
        ),
        folders=("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "fashion_mnist", "."),
        system_folders=("/usr/share/datasets/fashion-mnist",),
        aliases=("fmnist", "fashion"),
    ),
    KnownSet(
        name="cifar10",
        title="CIFAR-10",
        **_CIFARS,
        class_names=tuple(_OBJECTS.split(",")),
        files=(
            OfficialFile("cifar-10-python.tar.gz", 170498071, "c58f30108f718f92721af3b95e74349a"),
        ),
        unpacked="cifar-10-batches-py",
        parts=(*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
    ),
    KnownSet(
        name="cifar100",
        title="CIFAR-100",
        **_CIFARS,
        class_names=tuple(map(str, range(100))),
        files=(
            OfficialFile("cifar-100-python.tar.gz", 169001437, "eb9058c3a382ffc7106e4002c42a8d85"),
        ),
        unpacked="cifar-100-python",
        parts=("train", "test"),
    ),
)
KNOWN_SETS: dict[str, KnownSet] = {known.name: known for known in _TABLE}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_PROPER_NAMES = {
    _plain(name): known.name for known in _TABLE for name in (known.name, *known.aliases)
}


def is_known(name: str) -> bool:
    """Whether a set goes by this name, whatever its case and punctuation; a path is no name."""
    return _plain(name) in _PROPER_NAMES and not {"/", os.sep} & set(name)


def known_set(name: str) -> KnownSet:
    """The set of this name, whatever its case and punctuation: ``"CIFAR-10"`` is ``"cifar10"``."""
    if not is_known(name):
        raise InvalidInputError(f"there is no data set {name!r}{_suggestion(name)}")
    return KNOWN_SETS[_PROPER_NAMES[_plain(name)]]


def _suggestion(name: str) -> str:
    """The known names, and the one that is most like this one, as the end of a message."""
    alike = difflib.get_close_matches(_plain(name), _PROPER_NAMES, n=1)
    meant = f" did you mean {_PROPER_NAMES[alike[0]]!r}?" if alike else ""
    return f";{meant} known are {', '.join(KNOWN_SETS)}"


def checked_dataset(name: str) -> str:
    """The proper name of a known set, or the whole path of another; an error if it is neither."""
    if is_known(name):
        return known_set(name).name
    path = named_path(name)
    require_path(path, name)
    return name_text(path.resolve())


def require_path(path: Path, name: str) -> None:
    """Raise if there is nothing at the path that ``name`` stands for."""
    if not path.exists():
        raise InvalidInputError(
            f"there is no data set or path {name!r}{_suggestion(name)}; or give the path of a"
            " folder of images or of an .npz file"
        )


def data_directory(data_dir: str | Path | None = None) -> Path:
    """Where data sets lie: the argument, else ``$CONVDKM_DATA``, else a folder of the user's."""
    if data_dir is not None:
        return named_path(data_dir)
    if named := os.environ.get(DATA_VARIABLE):
        return Path(named).expanduser()
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "convdkm"


def places(name: str, data_dir: str | Path | None = None) -> list[Path]:
    """Every folder or archive in which the set is looked for, in order."""
    known = known_set(name)
    root = data_directory(data_dir)
    folders = [*(root / folder for folder in known.folders), *map(Path, known.system_folders)]
    if known.format != "cifar":
        return folders
    unpacked = [folder / known.unpacked for folder in folders]
    packed = [folder / file.name for folder in folders for file in known.files]
    bare = folders if root.name == known.unpacked else []
    return [*unpacked, *bare, *packed]


def find(name: str, data_dir: str | Path | None = None) -> Path | None:
    """Where all files of the set lie (a folder or an archive), or ``None``."""
    known = known_set(name)
    if known.format == "embedded":
        package = find_spec("sklearn")
        return Path(package.origin).parent if package and package.origin else None
    return next((place for place in places(name, data_dir) if not _missing(place, known)), None)


def locate(name: str, data_dir: str | Path | None = None) -> Path:
    """Where the set lies; an error that lists every place looked in if it is nowhere."""
    place = find(name, data_dir)
    if place is not None:
        return place
    known, looked = known_set(name), ""
    for place in places(name, data_dir):
        missing = _missing(place, known)
        lacks = f" (lacks {', '.join(missing)})" if len(missing) < len(known.parts) else ""
        looked += f"  {place}{lacks}\n"
    raise MissingDataError(
        f"{known.title} not found. Looked in\n{looked}Fetch it with `convdkm data fetch"
        f" {known.name}`, or name the folder that holds it with --data-dir or {DATA_VARIABLE}"
    )


def idx_file(folder: Path, part: str) -> Path | None:
    """The file of a part, such as ``train-images``, under any of the names it goes by."""
    kind = "idx3-ubyte" if part.endswith("images") else "idx1-ubyte"
    stems = (f"{part}-{kind}", f"{part}.{kind}")
    candidates = (folder / f"{stem}{suffix}" for stem in stems for suffix in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def _missing(place: Path, known: KnownSet) -> list[str]:
    """The parts that are not in a folder; an archive holds them all."""
    if known.format == "idx":
        return [part for part in known.parts if idx_file(place, part) is None]
    if place.name.endswith(".tar.gz") and place.is_file():
        return []
    return [part for part in known.parts if not (place / part).is_file()]

"""Pretrained machines: which there are, where their files lie, and that these are the right ones.

``index.json`` in this folder lists every published machine with the SHA-256 of its file. Small
files are part of the package, others lie in the folder ``pretrained`` of the repository. Nothing
slow is imported here. ``scripts/make_pretrained.py`` writes files and index, and
:func:`convdkm.load_pretrained` reads them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convdkm.checks import wrong_kinds
from convdkm.data.checksums import Checksum
from convdkm.data.download import fetch_file
from convdkm.errors import InvalidInputError
from convdkm.storage.files import read_json

ADDRESS = ""
"""Where releases keep the files, as the start of a URL; empty until there is a release."""

VARIABLE = "CONVDKM_PRETRAINED"
INDEX = "index.json"
PACKAGED = Path(__file__).parent
"""The folder of the index, and of the files that travel with the package."""
CLONE = PACKAGED.parents[2] / "pretrained"
"""The folder of the other files, where the package runs from a clone of the repository."""


class PretrainedError(InvalidInputError):
    """A pretrained machine that is not known, not here, or not what was published."""


@dataclass(frozen=True)
class KnownMachine:
    """A machine as it is published.

    Attributes:
        name: how it is called.
        file: the name of its file.
        sha256: of that file, in hexadecimal digits.
        size: of that file, in bytes.
        dataset: what it was trained on.
        image_shape: channels, height and width.
        class_names: one for each class.
        figures: of its run, such as ``test_accuracy``.
    """

    name: str
    file: str
    sha256: str
    size: int
    dataset: str
    image_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    figures: Mapping[str, float]

    @property
    def checksum(self) -> Checksum:
        """What its file is known by."""
        return Checksum("SHA-256", self.sha256)


_KINDS: dict[str, Any] = {
    "file": str,
    "sha256": str,
    "size": int,
    "dataset": str,
    "image_shape": list[int],
    "class_names": list[str],
    "figures": dict[str, float],
}


def known(folder: str | Path | None = None) -> dict[str, KnownMachine]:
    """The machines by name: the published ones, and those that the folder's own index lists.

    Args:
        folder: as in :func:`convdkm.load_pretrained`.
    """
    given = _given(folder)
    indices = [PACKAGED / INDEX, *([given / INDEX] if given is not None else [])]
    return {
        name: machine for path in indices if path.is_file() for name, machine in _read(path).items()
    }


def is_known(name: str | Path, folder: str | Path | None = None) -> bool:
    """Whether a machine goes by this name."""
    return str(name) in known(folder)


def places(folder: str | Path | None = None) -> list[Path]:
    """The folders that files are looked for in, in order; the last is where downloads go."""
    given = _given(folder)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    clone = [CLONE] if (CLONE.parent / "pyproject.toml").is_file() else []
    return [*([given] if given is not None else []), PACKAGED, *clone, cache / "convdkm/pretrained"]


def find(name: str, folder: str | Path | None = None) -> Path:
    """The file of a machine, fetched if it is nowhere here; its SHA-256 is that of the index.

    Args:
        name: of the machine.
        folder: as in :func:`convdkm.load_pretrained`.

    Raises:
        PretrainedError: it is not known, is nowhere, or is something else.
    """
    machines = known(folder)
    if name not in machines:
        from convdkm.options import nearest

        listed = ", ".join(machines) or "none"
        raise PretrainedError(
            f"there is no pretrained machine {name!r}.{nearest(name, machines)} There are: {listed}"
        )
    machine, folders = machines[name], places(folder)
    target = folders[-1] / machine.file
    found = next((p for each in folders if (p := each / machine.file).is_file()), None)
    if ADDRESS and found in (None, target):  # one of an earlier release is replaced
        url = f"{ADDRESS.rstrip('/')}/{machine.file}"
        fetch_file(url, target, machine.size, machine.checksum, option="XDG_CACHE_HOME")
        return target
    if found is None:
        looked = "".join(f"  {each}\n" for each in folders)
        raise PretrainedError(
            f"{machine.file}, the file of the pretrained machine {name!r}, is not here. Looked in\n"
            f"{looked}Take it from the folder pretrained of the repository (SHA-256"
            f" {machine.sha256}, {machine.size:,} bytes), and put it into one of these, or name the"
            f" folder that holds it with {VARIABLE}"
        )
    if (actual := machine.checksum.of(found)) != machine.sha256:
        raise PretrainedError(
            f"{found} is not the file of the pretrained machine {name!r}: its SHA-256 should be"
            f" {machine.sha256} but is {actual}. It is damaged, or of another version; replace it"
        )
    return found


def located(source: str | Path) -> Path:
    """What a user names: a file or folder that is there, or else the pretrained machine's file.

    A path at which there is nothing, and which is no machine's name, comes back as it is.
    """
    path = Path(source)
    return find(str(source)) if not path.exists() and is_known(source) else path


def _given(folder: str | Path | None) -> Path | None:
    named = folder if folder is not None else os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else None


def _read(path: Path) -> dict[str, KnownMachine]:
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise PretrainedError(f"{path} is no index of pretrained machines: {error}") from None
    if not isinstance(content, dict):
        raise PretrainedError(f"{path} is no index of pretrained machines: it holds no names")
    machines = {}
    for name, given in content.items():
        entry = given if isinstance(given, dict) else {}
        wrong = sorted(_KINDS.keys() - entry.keys()) + wrong_kinds(entry, _KINDS)
        if wrong or Path(entry["file"]).name != entry["file"]:
            raise PretrainedError(f"{path}: {(wrong or ['file'])[0]} of {name!r} is wrong")
        values = {key: entry[key] for key in _KINDS}
        lists = {key: tuple(values[key]) for key in ("image_shape", "class_names")}
        machines[name] = KnownMachine(name, **values | lists)
    return machines

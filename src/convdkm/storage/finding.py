"""Whether a file is what was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from convdkm.errors import InvalidInputError
from convdkm.storage.digests import check_digest
from convdkm.storage.files import read_json

State = Literal["ok", "readable", "no digest", "damaged"]
OLD = "written by an older version: it can be read, but not checked"


@dataclass(frozen=True)
class Finding:
    """What is known of a file.

    Its state is ``ok`` if it is, bit for bit, what was written; ``readable`` for tables and
    settings, which have no digest and make sense; ``no digest`` for a file that should have one but
    is older; or ``damaged``. The detail says why.
    """

    path: Path
    state: State
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.state}{self.detail and f' ({self.detail})'}"


def checked_file(path: Path, read: Callable[[Path], Any]) -> Finding:
    """A file that has a digest; ``read`` raises if it makes no sense."""
    try:
        has_digest = check_digest(path)
        read(path)
    except Exception as error:  # whatever it is, the file is not what was written
        return Finding(path, "damaged", reason_of(error, path))
    return Finding(path, "ok") if has_digest else Finding(path, "no digest", OLD)


def checked_text(path: Path, read: Callable[[Path], str]) -> Finding:
    """A file without a digest; ``read`` tells what there is to know of it, and raises."""
    try:
        return Finding(path, "readable", read(path))
    except Exception as error:
        return Finding(path, "damaged", reason_of(error, path))


def reason_of(error: Exception, path: Path) -> str:
    """An error on one line, without the name of the file it is about."""
    text = " ".join(str(error).split()) or repr(error)
    return text.removeprefix(f"{path} ").removeprefix("is damaged: ")


def values_of(path: Path) -> dict[str, Any]:
    """The content of a JSON file that holds values by name."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise InvalidInputError("it holds no values by name")
    return content

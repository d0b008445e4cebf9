"""Files that are whole or not there: written beside their place, then moved into it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from convdkm.errors import CannotWriteError, ConvDKMError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of the errors of a disk that is full, or of a quota that is used up."""

_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Whatever keeps ``path`` from being written is a :class:`~convdkm.errors.CannotWriteError`."""
    try:
        yield
    except ConvDKMError:
        raise
    except OSError as error:
        reason = f"{path} cannot be written: {error.strerror or error}"
        if error.errno in NO_ROOM:
            reason += "; free some space"
        elif error.errno in _CLOSED:
            reason += "; choose a place that can be written to"
        raise CannotWriteError(reason) from error


@contextmanager
def replacing(path: Path, before: Callable[[], None] | None = None) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it takes the place of ``path`` at the end.

    The old file stays until the new one is on disk, whatever happens in between.

    Args:
        path: of the file.
        before: called when the new file is on disk, before it takes the place of the old one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            flush_to_disk(temporary)
            if before is not None:
                before()
            os.replace(temporary, path)
            flush_to_disk(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Make sure that a file's content, or a folder's names, survive a power cut."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a text file, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file, atomically; what JSON cannot hold is written as text."""
    default: Callable[[Any], str] = str
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, default=default) + "\n")

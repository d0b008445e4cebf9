"""Files that are whole or not there, and locks on what one process alone may write.

And files that others wrote: only regular ones are opened, since a pipe would keep a reader waiting.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from convdkm.errors import CannotWriteError, ConvDKMError, InvalidInputError
from convdkm.storage.text import writable

MOST_DIGITS = 300
"""Of an integer in JSON: more than any count has, and few enough for a float."""

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
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it takes the place of ``path`` at the end.

    The old file stays until the new one is on disk, whatever happens in between.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.touch()
            permissions = stat.S_IMODE(temporary.stat().st_mode)
            yield temporary
            temporary.chmod(permissions)  # what wrote it may have made a file for its owner alone
            move_into_place(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def move_into_place(temporary: Path, path: Path) -> None:
    """Let a file that is complete take the place of ``path``; see :func:`replacing`."""
    _flush_to_disk(temporary)
    os.replace(temporary, path)
    _flush_to_disk(path.parent)


def _flush_to_disk(path: Path) -> None:
    """Make sure that a file's content, or a folder's names, survive a power cut."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    r"""Write a text file, atomically; stray bytes of names as ``\udcff``, which JSON reads back."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file, atomically; what JSON cannot hold is written as text."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n")


def require_regular(path: Path) -> None:
    """Raise if something is there that is no regular file: a pipe, a device, a folder."""
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        kind = "a folder" if path.is_dir() else "a pipe, a device or a socket"
        raise InvalidInputError(f"{path} is {kind}, not a regular file")


def read_text(path: Path) -> str:
    """The text of a regular file."""
    require_regular(path)
    return path.read_text(encoding="utf-8")


def parse_json(text: str) -> Any:
    """The value that JSON describes; :class:`json.JSONDecodeError` also where it is too deep."""
    try:
        return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise json.JSONDecodeError(f"a number of {len(digits):,} digits", "", 0)
    return int(digits)


def read_json(path: Path) -> Any:
    """The value of a JSON file; :class:`OSError` or :class:`ValueError` where there is none."""
    return parse_json(read_text(path))


def read_mapping(path: Path) -> dict[str, Any] | None:
    """The mapping of a JSON file; None where it is absent or damaged."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


@contextmanager
def plain_path(path: Path) -> Iterator[Path]:
    """The path of a file to read, for libraries that take none but UTF-8."""
    if writable(str(path)):
        yield path
        return
    with path.open("rb") as file:
        yield Path(f"/dev/fd/{file.fileno()}")


@contextmanager
def locked(path: Path, taken: str, advice: str) -> Iterator[None]:
    """Hold the lock ``path``, which ends with the process, however it ends.

    The file says who holds it, or held it last; see :func:`holder`. Without effect on Windows,
    which has no such locks.

    Raises:
        InvalidInputError: another process holds it: what is ``taken``, by whom, and the ``advice``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a", encoding="utf-8") as handle:
            with suppress(ImportError):
                import fcntl

                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    name = "another process"
                    if who := holder(path):
                        name = f"process {who['process']} on {who['host']} since {who['since']}"
                    raise InvalidInputError(f"{taken} by {name}; {advice}") from None
            # A file that was removed between opening and locking locks nothing.
            if not (path.exists() and os.path.samestat(path.stat(), os.fstat(handle.fileno()))):
                continue
            process = {
                "process": os.getpid(),
                "host": platform.node(),
                "since": datetime.now().astimezone().isoformat(timespec="seconds"),
                "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            }
            handle.truncate(0)
            handle.write(json.dumps(process) + "\n")
            handle.flush()
            yield
            return


def holder(path: Path) -> dict[str, Any]:
    """Who holds a lock, or held it last: ``process``, ``host``, ``since`` and ``command``."""
    return read_mapping(path) or {}

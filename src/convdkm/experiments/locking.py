"""Locks that end with the process that holds them, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from convdkm.errors import InvalidInputError


@contextmanager
def locked(path: Path, message: str) -> Iterator[None]:
    """Hold the lock ``path``; an error with that message if another process holds it.

    Without effect on Windows, which has no such locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        with suppress(ImportError):
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidInputError(message) from None
        yield

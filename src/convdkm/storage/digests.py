"""Digests inside files, of all else that is in them: damage is noticed when they are read.

A file is written with a blank digest, wherever its format has room for one: an entry of its
metadata, a comment, some bytes at its end. The digest of the whole file, blank included, then takes
the place of the blank. So it is there in files of every kind, and covers each of their bits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path

from convdkm.errors import ConvDKMError
from convdkm.storage.files import replacing

KEY = "convdkm-digest"
"""What the digest is called in the metadata of a file."""

_DIGITS = 64
BLANK = "sha256:" + "0" * _DIGITS
"""Its value until the file is sealed."""

LINE = f"{KEY} {BLANK}".encode()
"""Both, for formats that have room for some bytes alone."""

# The name and the value are two marks, so that a flipped bit in one does not hide the digest.
_VALUE = re.compile(rb"sha256:([0-9a-f]{%d})" % _DIGITS)
_WHOLE = re.compile(rb"%s.{1,8}%s" % (KEY.encode(), _VALUE.pattern), re.DOTALL)


class DamagedError(ConvDKMError, ValueError):
    """A file whose content does not match its digest."""


@contextmanager
def sealing(path: Path) -> Iterator[Path]:
    """``files.replacing`` for a file with a blank digest, which is filled in."""
    with replacing(path) as temporary:
        yield temporary
        with temporary.open("r+b") as file:
            with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
                place = _place(content)
                assert place is not None, f"there is no blank digest in {path}"
                digest = _digest(content, place)
            file.seek(place)
            file.write(digest)


def check_digest(path: Path) -> bool:
    """Whether a file has a digest, and so can be checked.

    Raises:
        DamagedError: the content is not what the digest says.
    """
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        place = _place(content)
        if place is None and content.find(KEY.encode()) < 0 and not _VALUE.search(content):
            return False
        if place is None or _digest(content, place) != content[place : place + _DIGITS]:
            raise DamagedError("its content does not match its digest")
    return True


def _place(content: mmap) -> int | None:
    """Where the digits of the digest begin."""
    found = _WHOLE.search(content)
    return None if found is None else found.start(1)


def _digest(content: mmap, place: int) -> bytes:
    """The digest of all but itself, as digits."""
    found = hashlib.sha256()
    with memoryview(content) as view, view[:place] as head, view[place + _DIGITS :] as tail:
        for part in (head, b"0" * _DIGITS, tail):
            found.update(part)
    return found.hexdigest().encode()

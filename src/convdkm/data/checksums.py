"""Checksums: those that data sets are published with, and short ones that tell images apart."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


def md5_of_file(path: Path) -> str:
    """MD5 of a file, read in blocks."""
    return str(_read(hashlib.md5(usedforsecurity=False), path).hexdigest())


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file, read in blocks."""
    return str(_read(hashlib.sha256(), path).hexdigest())


@dataclass(frozen=True)
class Checksum:
    """What a published file is known by: the kind of its checksum, and the hexadecimal digits."""

    kind: Literal["MD5", "SHA-256"]
    digits: str

    def of(self, path: Path) -> str:
        """The checksum of this kind that a file has."""
        return (md5_of_file if self.kind == "MD5" else sha256_of_file)(path)

    def fits(self, path: Path) -> bool:
        """Whether a file is the one that was published."""
        return self.of(path) == self.digits


def md5_of_bytes(content: bytes) -> str:
    """MD5 of what is in memory."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def digest_of_file(path: Path) -> str:
    """A short digest of a file, read in blocks; see :func:`digest_of_bytes`."""
    return _shortened(_read(hashlib.sha256(), path))


def digest_of_bytes(content: bytes) -> str:
    """The first 72 bits of SHA-256, as 12 letters.

    That two of a million images share them by accident has a chance of one in ten thousand million.
    """
    return _shortened(hashlib.sha256(content))


def _shortened(checksum: Any) -> str:
    return base64.urlsafe_b64encode(checksum.digest()[:9]).decode()


def _read(checksum: Any, path: Path) -> Any:
    with path.open("rb") as file:
        while block := file.read(2**20):
            checksum.update(block)
    return checksum

"""Checksums, as data sets are published with them."""

from __future__ import annotations

import hashlib
from pathlib import Path


def md5_of_file(path: Path) -> str:
    """MD5 of a file, read in blocks."""
    checksum = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(2**20):
            checksum.update(block)
    return checksum.hexdigest()


def md5_of_bytes(content: bytes) -> str:
    """MD5 of what is in memory."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()

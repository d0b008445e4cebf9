"""Damage to files, and files as older versions wrote them."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file


def flipped_bits(path: Path, count: int, part: str = "all", seed: int = 0) -> Iterator[str]:
    """Flip a bit of a file, so many times, always another; in the end it is as it was.

    Args:
        path: of the file.
        count: how many.
        part: all of it, or the header or the tensors of a safetensors file.
        seed: of the choice.
    """
    content, generator = path.read_bytes(), random.Random(seed)
    header = 8 + int.from_bytes(content[:8], "little")
    places = {
        "all": range(len(content)),
        "header": range(header),
        "tensors": range(header, len(content)),
    }[part]
    for _ in range(count):
        changed, place, bit = bytearray(content), generator.choice(places), generator.randrange(8)
        changed[place] ^= 1 << bit
        path.write_bytes(changed)
        yield f"bit {bit} of byte {place}"
    path.write_bytes(content)


def unnoticed_flips(
    path: Path, read, error: type[Exception], count: int, part: str = "all"
) -> list[str]:
    """Those of :func:`flipped_bits` with which ``read(path)`` raises no such error."""
    unnoticed = []
    for where in flipped_bits(path, count, part):
        try:
            read(path)
        except error:
            continue
        unnoticed.append(where)
    return unnoticed


def cut(path: Path, share: float = 0.5) -> None:
    """Leave the beginning of a file alone."""
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def rewrite(path: Path, change=lambda header, tensors: None, key: str = "convdkm") -> None:
    """Write a safetensors file again as older versions did, without a digest, but for a change."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        header = json.loads(file.metadata()[key])
    change(header, tensors)
    save_file(tensors, path, metadata={key: json.dumps(header)})

"""What digests in checkpoints cost, and what they find.

    python benchmarks/digests.py --megabytes 50 --flips 400

Times are medians of writing (to the disk, as checkpoints are) and of reading, with the digest and
without. Bits are flipped one at a time in a file with a digest and in one without; those are
"noticed" that end in an error when the file is read.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from convdkm.storage.files import replacing
from convdkm.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    read_checkpoint,
    write_checkpoint,
)


def some_checkpoint(megabytes: float, tensors: int = 200) -> Checkpoint:
    size = round(megabytes * 1e6 / 8 / tensors)
    return Checkpoint(
        {f"model.{number}": torch.randn(size, dtype=torch.float64) for number in range(tensors)},
        {"progress": {"step": 1}},
    )


def write_plainly(path: Path, checkpoint: Checkpoint) -> None:
    with replacing(path) as temporary:
        save_file(checkpoint.tensors, temporary, metadata={"convdkm": '{"format": 1}'})


def read_plainly(path: Path) -> float:
    """All tensors, each of their numbers looked at once: a file that is mapped is not yet read."""
    with safe_open(path, framework="pt") as file:
        return sum(file.get_tensor(name).sum().item() for name in file.keys())  # noqa: SIM118


def read_checked(path: Path) -> float:
    return sum(each.sum().item() for each in read_checkpoint(path).tensors.values())


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def noticed(path: Path, flips: int) -> tuple[int, int]:
    """How many of so many flipped bits of the header, and of the tensors, are an error."""
    content, generator = bytearray(path.read_bytes()), random.Random(0)
    header = 8 + int.from_bytes(content[:8], "little")
    other = path.with_name("flipped.safetensors")
    counts = []
    for places in (range(header), range(header, len(content))):
        count = 0
        for _ in range(flips):
            place, bit = generator.choice(places), 1 << generator.randrange(8)
            content[place] ^= bit
            other.write_bytes(content)
            content[place] ^= bit
            try:
                read_checkpoint(other)
            except CheckpointError:
                count += 1
        counts.append(count)
    return counts[0], counts[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--flips", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--folder", help="where to write; that of temporary files by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        sealed, plain = Path(folder, "digest.safetensors"), Path(folder, "plain.safetensors")
        large, repeats = some_checkpoint(options.megabytes), options.repeats
        for name, calls in {
            "writing": (
                lambda: write_checkpoint(sealed, large),
                lambda: write_plainly(plain, large),
            ),
            "reading": (lambda: read_checked(sealed), lambda: read_plainly(plain)),
        }.items():
            first, second = (milliseconds(call, repeats) for call in calls)
            print(f"{name}: {first:.0f} ms with the digest, {second:.0f} ms without")
        small = some_checkpoint(0.05, 50)
        write_checkpoint(sealed, small)
        write_plainly(plain, small)
        for name, path in {"with the digest": sealed, "without": plain}.items():
            header, tensors = noticed(path, options.flips)
            print(
                f"{name}: {header} of {options.flips} flips in the header and {tensors} of"
                f" {options.flips} in tensors are noticed"
            )


if __name__ == "__main__":
    main()

"""Kernel entries a second, beside neural-tangents' own compiled code on the same processor.

    scripts/kernel_entries.sh --kernels myrtle5 --images 16 --repeats 3

Both compute the N×N kernel between two sets of N random images, in float32 and by turns: once
here, once there, and so on. neural-tangents needs package versions of its own, so that its part
runs in a process of the virtual environment that --other names; the script above makes one.
Ours are worked out by PyTorch's own operations, and with NNGPKernel.compile(); ratios are those of
either to theirs. Compilation is not timed. The largest relative difference between their matrix and
ours is printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
CASES = {
    "myrtle5": "myrtle5_gap",
    "myrtle7": "myrtle7_gap",
    "myrtle10": "myrtle10_gap",
    "conv2-gap": "conv2_gap",
    "conv2-vec": "conv2_vec",
    "res1-gap": "res1_gap",
}
"""Kernels by their names here, and in scripts/make_golden_baselines.py."""


def images(arguments: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Two sets of images, the same in both processes."""
    random = np.random.default_rng(0)
    shape = (2, arguments.images, 3, arguments.side, arguments.side)
    first, second = random.standard_normal(shape, dtype=np.float32)
    return first, second


def use_cores(count: int | None) -> None:
    """Keep this process, and what it starts, to so many cores."""
    if count is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


# -- here ------------------------------------------------------------------------------------------


class Ours:
    """A kernel of convdkm, with compiled functions or without."""

    def __init__(self, name: str, arguments: argparse.Namespace, *, compiled: bool) -> None:
        import torch

        from convdkm.lab.baselines.kernels import NNGPKernel, myrtle, plain, residual
        from convdkm.layers import Flatten

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        made = {
            "conv2-gap": lambda: plain(2),
            "conv2-vec": lambda: plain(2, Flatten()),
            "res1-gap": lambda: residual(1),
        }
        build = made.get(name, lambda: myrtle(int(name.removeprefix("myrtle"))))
        self.kernel = NNGPKernel(build()).compile(enabled=compiled)
        self.sides = [torch.from_numpy(each) for each in images(arguments)]

    def turn(self) -> tuple[float, np.ndarray]:
        """Seconds, and the matrix."""
        start = time.perf_counter()
        values = self.kernel.matrix(*self.sides)
        return time.perf_counter() - start, values.numpy()


# -- there -----------------------------------------------------------------------------------------


class Theirs:
    """A process of the other virtual environment, which does a turn whenever it is told to."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        options = ["--images", arguments.images, "--side", arguments.side]
        options += ["--batch", arguments.batch, "--worker", name]
        command = [arguments.other, __file__, *map(str, options)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )

    def turn(self) -> tuple[float, np.ndarray]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the process of neural-tangents ended; its error is above")
        answer = json.loads(line)
        return answer["seconds"], np.array(answer["values"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def work(name: str, arguments: argparse.Namespace) -> None:
    """Be that process: a line of JSON for each line that comes in."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import jax
    from make_golden_baselines import cases
    from make_golden_nngp import load_stax

    stax = load_stax()
    jax.config.update("jax_enable_x64", False)
    (case,) = (each for each in cases(stax) if each.name == CASES[name])
    kernel = stax.serial(*case.layers)[2]
    compiled = jax.jit(lambda x, y: kernel(x, y, "nngp"))
    sides = [jax.numpy.asarray(np.moveaxis(each, 1, -1)) for each in images(arguments)]
    parts = [
        [side[start : start + arguments.batch] for start in range(0, len(side), arguments.batch)]
        for side in sides
    ]
    for _ in sys.stdin:
        start = time.perf_counter()
        blocks = [[compiled(x, y).block_until_ready() for y in parts[1]] for x in parts[0]]
        seconds = time.perf_counter() - start
        values = np.block([[np.asarray(block) for block in row] for row in blocks])
        print(json.dumps({"seconds": seconds, "values": values.tolist()}), flush=True)


# -- both ------------------------------------------------------------------------------------------


def race(name: str, arguments: argparse.Namespace) -> None:
    """All by turns, after one that does not count; a line of the table."""
    theirs = Theirs(name, arguments)
    racers = [Ours(name, arguments, compiled=flag) for flag in (False, True)]
    times: tuple[list[float], ...] = ([], [], [])
    for turn in range(arguments.repeats + 1):
        found = [racer.turn() for racer in (*racers, theirs)]
        if turn:
            for seconds, (taken, _) in zip(times, found, strict=True):
                seconds.append(taken)
    theirs.close()
    difference = max(np.abs(values / found[2][1] - 1).max() for _, values in found[:2])
    plain, joined, there = (arguments.images**2 / statistics.median(each) for each in times)
    print(
        f"{name:10s} {plain:12.1f} {joined:12.1f} {there:12.1f} {plain / there:8.2f}"
        f" {joined / there:8.2f} {difference:12.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--other", metavar="PYTHON", help="of the virtual environment with neural-tangents"
    )
    parser.add_argument("--kernels", nargs="+", choices=CASES, default=["myrtle5", "myrtle10"])
    parser.add_argument("--images", type=int, default=16, help="N of the N×N entries (16)")
    parser.add_argument("--side", type=int, default=32, help="of the images (32)")
    parser.add_argument("--batch", type=int, default=4, help="images a side of a compiled call (4)")
    parser.add_argument("--repeats", type=int, default=3, help="turns that count (3)")
    parser.add_argument("--cores", type=int, help="of both (all)")
    parser.add_argument("--worker", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.images % arguments.batch:
        parser.error("--images must be a multiple of --batch, so that one call is compiled")
    if arguments.worker is not None:
        work(arguments.worker, arguments)
        return
    if arguments.other is None:
        parser.error("--other is missing; scripts/kernel_entries.sh makes an environment for it")
    use_cores(arguments.cores)
    print(
        f"{arguments.images}×{arguments.images} entries, images of 3×{arguments.side}×"
        f"{arguments.side}, {len(os.sched_getaffinity(0))} cores, median of {arguments.repeats}"
    )
    heads = ("kernel", 10, "<"), ("ours (1/s)", 12, ">"), ("compiled", 12, ">")
    heads = *heads, ("theirs (1/s)", 12, ">"), ("ratio", 8, ">"), ("compiled", 8, ">")
    heads = *heads, ("difference", 12, ">")
    print(" ".join(f"{text:{side}{width}}" for text, width, side in heads))
    for name in arguments.kernels:
        race(name, arguments)


if __name__ == "__main__":
    main()

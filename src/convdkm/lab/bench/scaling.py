r"""How a training step grows with the sizes of its problem, beside what theory says.

A step costs :math:`O(L (P_i^3 + P_i^2 N S))` for L layers, :math:`P_i` inducing points, N images
and S places, and keeps :math:`O(L (P_i^2 + P_i N S))` numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from statistics import median
from typing import Any, NamedTuple

from convdkm.lab.bench.contestants import Workload, machine, ours
from convdkm.lab.bench.measure import in_turn, slope


class Axis(NamedTuple):
    """One size that is varied.

    Attributes:
        name: what it is.
        sizes: its values.
        at: the workload at a value.
        time, memory: exponents by theory, where data dominates, and where the inducing chain does.
    """

    name: str
    sizes: tuple[int, ...]
    at: Callable[[int], Workload]
    time: str
    memory: str


def axes(base: Workload) -> list[Axis]:
    """The sizes to vary, around a machine: inducing points, side of the images, batch, depth."""
    first, stages, half = base.widths[0], len(base.blocks), max(base.batch // 2, 1)

    def wider(points: int) -> Workload:
        return replace(base, widths=tuple(points * width // first for width in base.widths))

    def deeper(layers: int) -> Workload:
        return replace(base, blocks=((layers - 1) // (2 * stages),) * stages)

    sides = (max(base.side // 2, 2), base.side, 2 * base.side)
    batches = (half, 2 * half, 4 * half)
    depths = tuple(1 + 2 * stages * count for count in (1, 2, 4))
    return [
        Axis("inducing points", (first, 2 * first, 4 * first), wider, "2 (3)", "1 (2)"),
        Axis("side of the images", sides, lambda side: replace(base, side=side), "2 (0)", "2 (0)"),
        Axis("batch", batches, lambda batch: replace(base, batch=batch), "1 (0)", "1 (0)"),
        Axis("Gram layers", depths, deeper, "1 (1)", "1 (1)"),
    ]


def growth(
    base: Workload, repeats: int, say: Callable[[str], None], *, compiled: bool
) -> list[dict[str, Any]]:
    """Seconds and bytes of the machine's step along every axis, and the exponents fitted to them.

    Returns:
        Plain values, axis by axis.
    """
    results = []
    for axis in axes(base):
        say(f"growth with {axis.name}: {', '.join(map(str, axis.sizes))}")
        workloads = [axis.at(size) for size in axis.sizes]
        runners = [ours(each, machine(each, compiled=compiled)) for each in workloads]
        laps = in_turn({str(index): each.lap for index, each in enumerate(runners)}, repeats)
        seconds = [median(steps) for steps, _ in laps.values()]
        peaks = [each.memory() for each in runners]
        results.append(
            {
                "axis": axis.name,
                "sizes": axis.sizes,
                "seconds": seconds,
                "bytes": peaks,
                "time_exponent": slope(axis.sizes, seconds),
                "memory_exponent": slope(axis.sizes, peaks),
                "time_theory": axis.time,
                "memory_theory": axis.memory,
                "around": asdict(base),
            }
        )
    return results

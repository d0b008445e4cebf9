r"""How a training step grows with the sizes of its problem, beside what theory says.

A step costs :math:`O(L (P_i^3 + P_i^2 N S))` for L layers, :math:`P_i` inducing points, N images
and S places, and keeps :math:`O(L (P_i^2 + P_i N S))` numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from convdkm.lab.bench.contestants import Contestant, Workload, machine, ours
from convdkm.lab.bench.measure import in_turn, slope
from convdkm.runtime.memory import peak_memory


@dataclass(frozen=True)
class Axis:
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


@dataclass(frozen=True)
class Growth:
    """Seconds and bytes of a step at every value of an axis, and the exponents fitted to them."""

    axis: Axis
    seconds: list[float]
    bytes: list[int]

    @property
    def time(self) -> float:
        return slope(self.axis.sizes, self.seconds)

    @property
    def memory(self) -> float:
        return slope(self.axis.sizes, self.bytes)


def axes(base: Workload) -> list[Axis]:
    """The sizes to vary, around a machine: inducing points, side of the images, batch, depth."""

    def wider(points: int) -> Workload:
        return replace(base, widths=tuple(points * w // base.widths[0] for w in base.widths))

    def larger(side: int) -> Workload:
        return replace(base, side=side)

    def more(batch: int) -> Workload:
        return replace(base, batch=batch)

    def deeper(layers: int) -> Workload:
        return replace(base, blocks=((layers - 1) // (2 * len(base.blocks)),) * len(base.blocks))

    first, half = base.widths[0], max(base.batch // 2, 1)
    stages = 2 * len(base.blocks)
    return [
        Axis("inducing points", (first, 2 * first, 4 * first), wider, "2 (3)", "1 (2)"),
        Axis(
            "side of the images",
            (max(base.side // 2, 2), base.side, 2 * base.side),
            larger,
            "2 (0)",
            "2 (0)",
        ),
        Axis("batch", (half, 2 * half, 4 * half), more, "1 (0)", "1 (0)"),
        Axis("Gram layers", tuple(1 + stages * n for n in (1, 2, 4)), deeper, "1 (1)", "1 (1)"),
    ]


def growth(
    base: Workload, repeats: int, say: Callable[[str], None], *, compiled: bool = False
) -> list[Growth]:
    """Time and memory of the machine's step along every axis."""
    results = []
    for axis in axes(base):
        say(f"growth with {axis.name}: {', '.join(map(str, axis.sizes))}")
        runners = [_contestant(axis.at(size), compiled) for size in axis.sizes]
        laps = in_turn({str(index): each.lap for index, each in enumerate(runners)}, repeats)
        seconds = [laps[str(index)][0].median for index in range(len(runners))]
        results.append(Growth(axis, seconds, _memories(runners)))
    return results


def _contestant(workload: Workload, compiled: bool) -> Contestant:
    return ours(workload, machine(workload, compiled=compiled))


def _memories(contestants: Sequence[Contestant]) -> list[int]:
    peaks = []
    for each in contestants:
        each.forget()
        peaks.append(peak_memory(each.step))
    return peaks

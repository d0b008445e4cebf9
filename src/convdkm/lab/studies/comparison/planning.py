"""Which trials a comparison needs: methods × training sizes × seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convdkm.lab.baselines.methods import NAMES

Plan = dict[str, dict[int, int]]
"""For each method, the training sizes, and how many seeds of each."""


@dataclass(frozen=True)
class PlannedTrial:
    """One method, fitted once."""

    method: str
    size: int
    seed: int

    @property
    def title(self) -> str:
        """In messages."""
        return f"{self.method}, {self.size:,} images, seed {self.seed}"

    @property
    def place(self) -> str:
        """Where its files are, within those of the comparison."""
        return f"train-{self.size}/{self.method}/seed-{self.seed}"


def product(methods: Sequence[str], sizes: Sequence[int], seeds: int) -> Plan:
    """Every method at every size."""
    return {name: dict.fromkeys(sizes, seeds) for name in methods}


def merged(first: Plan, second: Plan) -> Plan:
    """What either of the two has, methods in the order of tables."""
    either: Plan = {}
    for name in (name for name in NAMES if name in first or name in second):
        one, other = first.get(name, {}), second.get(name, {})
        either[name] = {
            size: max(one.get(size, 0), other.get(size, 0)) for size in sorted({*one, *other})
        }
    return either


def planned(plan: Plan) -> list[PlannedTrial]:
    """The trials in the order they are made: small sizes first, and all methods of a seed."""
    trials = [
        PlannedTrial(method, size, seed)
        for method, sizes in plan.items()
        for size, seeds in sizes.items()
        for seed in range(seeds)
    ]
    order = {name: place for place, name in enumerate(NAMES)}
    return sorted(trials, key=lambda each: (each.size, each.seed, order[each.method]))

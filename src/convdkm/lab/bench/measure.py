"""Times of actions done in turn, and the slope of a curve."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Lap = tuple[float, ...]
"""Seconds: of the parts of one turn, or of one part in every turn."""
SETTLED = 3
"""Rounds after which an action is as it will be, but for memory."""


def in_turn(
    actions: Mapping[str, Callable[[], Lap]], repeats: int, settling: float = 0.0
) -> dict[str, list[Lap]]:
    """Do every action once, then every action again, and so on, so that all see the same machine.

    Args:
        actions: by name; each does its work and returns the seconds of its parts.
        repeats: turns that count.
        settling: seconds for which each action is repeated before the turns that count, and
            :data:`SETTLED` times at least: functions are compiled and steps recorded in the first
            rounds, and short actions take some until their memory is allocated. Without it, each
            action is done once beforehand.

    Returns:
        For every action the seconds of each of its parts, turn after turn.
    """
    for action in actions.values():
        start = time.perf_counter()
        for _ in range(SETTLED if settling else 1):
            action()
        while time.perf_counter() - start < settling:
            action()
    laps: dict[str, list[Lap]] = {name: [] for name in actions}
    gc.collect()
    gc.freeze()  # objects that exist already are not searched for garbage
    try:
        for _ in range(repeats):
            for name, action in actions.items():
                gc.collect()
                laps[name].append(action())
    finally:
        gc.unfreeze()
    return {name: list(zip(*turns, strict=True)) for name, turns in laps.items()}


def timed(action: Callable[[], object]) -> Callable[[], Lap]:
    """An action that returns the seconds it took."""

    def lap() -> Lap:
        start = time.perf_counter()
        action()
        return (time.perf_counter() - start,)

    return lap


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Exponent of the power law nearest to the points: least squares of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])

"""Times of things done in turn, and the slope of a curve."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

Lap = tuple[float, ...]
"""Seconds: of the parts of one turn, or of one part in every turn."""
SETTLED = 3
"""Rounds after which an action is as it will be, but for memory."""


def in_turn(
    actions: Mapping[str, Callable[[], Lap]],
    repeats: int,
    warm_up: int = 1,
    settling: float = 0.0,
) -> dict[str, list[Lap]]:
    """Do every action once, then every action again, and so on, so that all see the same machine.

    Args:
        actions: by name; each does its work and returns the seconds of its parts.
        repeats: turns that count.
        warm_up: turns before them that do not.
        settling: seconds for which each action is done again and again in each of those turns, and
            :data:`SETTLED` times at least: functions are compiled and steps recorded in the first
            rounds, and what is short takes some until the memory that it uses is there.

    Returns:
        For every action the seconds of each of its parts, turn after turn.
    """
    laps: dict[str, list[Lap]] = {name: [] for name in actions}
    for _ in range(warm_up):
        for action in actions.values():
            _settle(action, settling)
    with _settled_objects():
        for _ in range(repeats):
            for name, action in actions.items():
                gc.collect()
                laps[name].append(action())
    return {name: list(zip(*turns, strict=True)) for name, turns in laps.items()}


def _settle(action: Callable[[], Lap], seconds: float) -> None:
    start = time.perf_counter()
    for _ in range(SETTLED if seconds else 1):
        action()
    while time.perf_counter() - start < seconds:
        action()


@contextmanager
def _settled_objects() -> Iterator[None]:
    """Inside the block, objects that are there already are not looked through for garbage."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def timed(action: Callable[[], object]) -> Callable[[], Lap]:
    """An action that returns the seconds it took."""

    def lap() -> Lap:
        start = time.perf_counter()
        action()
        return (time.perf_counter() - start,)

    return lap


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Exponent of the power law nearest to the points: least squares of the logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    return statistics.linear_regression(x, y).slope

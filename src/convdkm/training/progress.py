"""How far training has come, and the time it took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """How far training has come: all that a checkpoint needs besides tensors.

    Attributes:
        step: steps done.
        seconds: time spent so far, over all parts of the run.
        caution: what the learning rate is multiplied by after failed steps; 1 normally.
        sums: of the epoch under way, weighted by images.
        ending: of an epoch whose steps are done, and which has not been evaluated and noted yet:
            the rate of its last step, and the divergences and gradients of layers in it.
        best: the best score of an epoch so far; higher is better.
        interrupted: whether the user stopped it.
    """

    step: int = 0
    seconds: float = 0.0
    caution: float = 1.0
    sums: dict[str, float] = field(default_factory=dict)
    ending: dict[str, Any] | None = None
    best: float | None = None
    interrupted: bool = False


class Clock:
    """Seconds since it was made, on top of those before."""

    def __init__(self, before: float) -> None:
        self._start = time.perf_counter() - before

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

"""How far a long computation is, told now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY = 10.0
"""Seconds between two lines."""


class Progress:
    """Counts work that is done, and tells how much is left.

    Args:
        what: what the lines begin with.
        total: how much there is.
        unit: of what.
        tell: called with a line; None for silence.
    """

    def __init__(
        self, what: str, total: int, unit: str, tell: Callable[[str], None] | None
    ) -> None:
        self.what, self.total, self.unit, self.tell = what, total, unit, tell
        self.done = 0
        self._start = self._told = time.monotonic()

    def add(self, count: int) -> None:
        """So much more is done; a line if the last one is a while ago, or this is the end."""
        self.done += count
        now = time.monotonic()
        if self.tell is None or (self.done < self.total and now - self._told < EVERY):
            return
        self._told = now
        share = self.done / self.total
        left = (now - self._start) * (1 - share) / share
        rest = f", {duration(left)} left" if self.done < self.total else ""
        self.tell(f"{self.what}: {share:.0%} of {self.total:,} {self.unit}{rest}")


def duration(seconds: float) -> str:
    """Such as 40 s, 12 min or 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    """Bytes in MiB or GiB."""
    return f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.1f} GiB"

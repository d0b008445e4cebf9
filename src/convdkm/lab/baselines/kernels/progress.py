"""Lines that tell the progress of a long computation."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY = 10.0
"""Seconds between two lines."""


class Progress:
    """Counts how many of the pairs of images are done, and tells it in lines about ``what``."""

    def __init__(self, what: str, total: int, tell: Callable[[str], None] | None) -> None:
        self.what, self.total, self.tell, self.done = what, total, tell, 0
        self._start = self._told = time.monotonic()

    def add(self, count: int) -> None:
        """Count more pairs; tell if the last line is a while ago, or this is the end."""
        self.done += count
        now, finished = time.monotonic(), self.done >= self.total
        if self.tell is not None and (finished or now - self._told >= EVERY):
            self._told = now
            share = self.done / self.total
            left = (now - self._start) * (1 - share) / share
            rest = "" if finished else f", {duration(left)} left"
            self.tell(f"{self.what}: {share:.0%} of {self.total:,} pairs{rest}")


def duration(seconds: float) -> str:
    """Such as 40 s, 12 min or 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    """Bytes in MiB or GiB."""
    return f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.1f} GiB"

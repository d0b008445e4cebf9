"""The most memory that torch holds at any moment of a computation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

from convdkm.benchmarks.tracing import trace

_ALLOCATION = "[memory]"
_MEMINFO = Path("/proc/meminfo")


def peak_memory(action: Callable[[], object]) -> int:
    """Bytes that torch's CPU allocator held at the worst moment, beyond what it held before.

    Every allocation and every release is counted, exactly and at the size that was asked for:
    outputs, what is saved for the backward pass, gradients, and temporary tensors inside operators.
    Not counted is what libraries take without asking torch (the scratch space of oneDNN and MKL),
    what the C library keeps for itself, and what stood before, whether it is released or not:
    parameters, images, the state of the optimiser.
    """
    events = trace(action, memory=True)
    changes = (int(event.nbytes()) for event in events if event.name() == _ALLOCATION)
    return max(accumulate(changes, initial=0))


def available_memory() -> int | None:
    """Bytes that can still be taken on this machine, where it tells."""
    if not _MEMINFO.exists():
        return None
    for line in _MEMINFO.read_text().splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    return None

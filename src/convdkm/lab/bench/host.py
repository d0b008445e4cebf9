"""The machine that the bench runs on, and whether something else runs on it too."""

from __future__ import annotations

import os
import platform
import re
import statistics
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from convdkm.lab.bench.measure import in_turn, timed

_CPUINFO = Path("/proc/cpuinfo")
BUSY_LOAD = 0.25
"""Load average for each core above which the machine counts as busy."""
BUSY_SLOWDOWN = 1.25
"""How much longer than the fastest the slow ones of equal products may take."""


def machine_facts() -> dict[str, Any]:
    """Processor, cores, threads in use and memory."""
    described = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    model = re.search(r"^model name\s*: (.+)$", described, re.MULTILINE)
    memory = None
    with suppress(AttributeError, ValueError, OSError):
        pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory = round(pages / 2**30, 1)
    return {
        "processor": model[1] if model else platform.processor() or platform.machine(),
        "cores": _cores(),
        "threads": torch.get_num_threads(),
        "memory_gib": memory,
        "platform": platform.platform(),
    }


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_average() -> float | None:
    """The load average of the last minute, where the system keeps one."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def slowdown(repeats: int = 30) -> float:
    """How much longer than the fastest of equal matrix products one in ten takes at least."""
    matrix = torch.ones(600, 600)
    actions = {"product": timed(lambda: matrix @ matrix)}
    (seconds,) = in_turn(actions, repeats, settling=0.01)["product"]
    return statistics.quantiles(seconds, n=10)[-1] / min(seconds)


def signs_of_others() -> list[str]:
    """Signs of other work on this machine; empty where it is quiet."""
    signs = []
    load, cores = load_average(), _cores()
    if load is not None and load > BUSY_LOAD * cores:
        signs.append(f"the load average was {load:.1f} on {cores} cores before it began")
    ratio = slowdown()
    if ratio > BUSY_SLOWDOWN:
        signs.append(f"equal matrix products differed {ratio:.1f}-fold in time")
    return signs

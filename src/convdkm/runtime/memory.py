"""The most memory that torch holds at any moment of a computation, and how much there is."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile

_ALLOCATION = "[memory]"
_MEMINFO = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_CPU = torch.device("cpu")


def trace(action: Callable[[], object], *, memory: bool = False) -> list[Any]:
    """The profiler's events of an action, on the CPU, in the order of their start."""
    # Else its library prints a line when it starts and when it stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(profile_memory=memory) as traced:
        action()
    results = traced.kineto_results
    if results is None:
        raise RuntimeError("this build of torch has a profiler that records nothing")
    return sorted(results.events(), key=lambda event: event.start_ns())


def peak_memory(action: Callable[[], object], device: torch.device = _CPU) -> int:
    """Bytes that torch's allocator held at the worst moment, beyond what it held before.

    On the CPU every allocation and every release is counted, exactly and at the size that was asked
    for: outputs, what is saved for the backward pass, gradients, and temporary tensors inside
    operators. Not counted is what libraries take without asking torch (the scratch space of oneDNN
    and MKL), what the C library keeps for itself, and what stood before, whether it is released or
    not: parameters, images, the state of the optimiser. On a GPU it is what CUDA's allocator says.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        action()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    gc.collect()
    events = trace(action, memory=True)
    changes = (int(event.nbytes()) for event in events if event.name() == _ALLOCATION)
    held = list(accumulate(changes, initial=0))
    # It falls below zero where something is released that an earlier trace has seen allocated.
    return max(now - lowest for now, lowest in zip(held, accumulate(held, min), strict=True))


def available_memory(device: torch.device = _CPU) -> int | None:
    """Bytes that can still be taken on a device, where it tells.

    On the CPU that is what the machine has left, or the control groups of this process, such as
    those of a container or of a job on a cluster, where they allow less.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    left = list(_left_by_linux())
    return max(0, min(left)) if left else None


def _left_by_linux() -> Iterator[int]:
    """What the machine has left, and each control group of this process, of either version."""
    kibibytes = _fields(_MEMINFO).get("MemAvailable")
    if kibibytes is not None:
        yield kibibytes * 1024
    for line in _text(_OWN_GROUPS).splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers == "":
            root, names = _GROUPS, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = _GROUPS / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inner = root / place.strip("/")
        for group in (inner, *inner.parents):
            most, used = (_text(group / name).strip() for name in names[:2])
            if most.isdigit() and used.isdigit():  # "max" is no limit
                # Pages of files that are not in use are given up when memory is asked for.
                yield int(most) - int(used) + _fields(group / "memory.stat").get(names[2], 0)
            if group == root:
                break


def _fields(path: Path) -> dict[str, int]:
    """Lines such as ``name: 12 kB`` or ``name 12`` by their names."""
    parts = (line.replace(":", " ").split() for line in _text(path).splitlines())
    return {part[0]: int(part[1]) for part in parts if len(part) > 1 and part[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

"""Traces of what torch does, by its own profiler."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.autograd.profiler import profile


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

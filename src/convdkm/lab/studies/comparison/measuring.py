"""Memory of this process, now and at its worst moment."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path

_STATUS, _REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak() -> None:
    """Begin anew with :func:`peak_memory`, where the system can."""
    with suppress(OSError):
        _REFERENCES.write_text("5")


def memory_now() -> int:
    """Bytes of memory that the process holds; where that is not known, the most it ever held."""
    return _status("VmRSS") or peak_memory()


def peak_memory() -> int:
    """Bytes that the process held at its worst moment, since :func:`forget_peak` if that works."""
    if found := _status("VmHWM"):
        return found
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(name: str) -> int | None:
    with suppress(OSError):
        found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
        return found and 1024 * int(found[1])
    return None

"""How the C library hands memory back to the kernel, and how to keep it.

glibc serves every request of 32 MiB or more (and smaller ones, until it has seen them freed) from a
mapping of its own, and gives it back when it is freed. A training step frees and takes the same
large tensors again and again; each time the kernel clears every page anew, when it is first
touched. Kept memory is taken again as it is.
"""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory for the next tensor, until the process ends.

    The process then holds on to the most memory it ever had in use, and to gaps between blocks
    that no later one fits into. It works on Linux with glibc, and does nothing elsewhere; it can be
    called more than once.

    Returns:
        Whether it took effect.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # No mappings of their own for large blocks, whatever M_MMAP_THRESHOLD, which stops at 32 MiB;
    # and no giving back of the top of the heap.
    return all([mallopt(_M_MMAP_MAX, 0), mallopt(_M_TRIM_THRESHOLD, _NEVER)])

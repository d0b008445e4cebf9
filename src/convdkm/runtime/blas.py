"""Products of large float64 matrices by NumPy's BLAS, where it is faster than PyTorch's.

PyTorch's builds for x86-64 multiply by MKL, which leaves the widest instructions of processors of
another maker unused. OpenBLAS, which NumPy's wheels bring along, uses them: on an AMD processor
with AVX-512, it multiplies matrices of 512×512 twice as fast.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

LARGE = 128**3
"""Multiplications from which a product is worth the detour."""
_CPUINFO = Path("/proc/cpuinfo")


@functools.cache
def numpy_is_faster() -> bool:
    """Whether it is here: MKL on an AMD processor with AVX-512, and OpenBLAS in NumPy."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkl.is_available():
        return False
    try:
        maker = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    dependencies = getattr(np.__config__, "CONFIG", {}).get("Build Dependencies", {})
    return "AuthenticAMD" in maker and "openblas" in str(dependencies.get("blas", {}).get("name"))


def _suits(left: Tensor, right: Tensor) -> bool:
    return (
        left.dtype == right.dtype == torch.float64
        and left.device.type == "cpu"
        and left.shape[0] * left.shape[1] * right.shape[1] >= LARGE
    )


def product(left: Tensor, right: Tensor) -> Tensor:
    """``torch.mm``, without a derivative."""
    if not _suits(left, right):
        return torch.mm(left, right)
    return torch.from_numpy(left.detach().numpy() @ right.detach().numpy())


def added_product(
    start: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """``torch.addmm``, without a derivative."""
    if not _suits(left, right):
        return torch.addmm(start, left, right, beta=beta, alpha=alpha)
    result = product(left, right)
    if alpha != 1:
        result.mul_(alpha)
    return result.add_(start, alpha=beta)

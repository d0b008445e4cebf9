"""Derivatives, and finite differences to compare them with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from convdkm.testing.outcome import require_close

STEP = 1e-5
"""Step of finite differences."""


def gradient(value: Tensor, source: Tensor) -> Tensor:
    """Derivative of the sum of ``value``; zero where it does not depend on ``source``."""
    if not value.requires_grad:
        return torch.zeros_like(source)
    (result,) = torch.autograd.grad(value.sum(), source, allow_unused=True)
    return torch.zeros_like(source) if result is None else result


def require_derivative(
    value: Callable[[], Tensor], source: Tensor, tolerance: float, what: str
) -> None:
    """Raise if the derivative of the sum of ``value()`` is not that of finite differences.

    Args:
        value: a function of ``source``, of order one.
        source: a leaf of autograd; its entries are moved one by one, and put back.
        tolerance: allowed error, relative to the largest derivative, or to 1 if that is smaller.
        what: derivative of what by what.
    """
    actual, expected = gradient(value(), source).flatten(), []
    for entry in source.detach().view(-1):
        before, sides = entry.clone(), []
        for by in (STEP, -STEP):
            entry.add_(by)
            with torch.no_grad():
                sides.append(value().sum())
            entry.copy_(before)
        expected.append((sides[0] - sides[1]) / (2 * STEP))
    what = f"the derivative of {what}, and finite differences"
    require_close(actual, torch.stack(expected), tolerance, what, least_scale=1.0)

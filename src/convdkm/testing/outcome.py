"""How a requirement fails: one typed error, and the comparisons that raise it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

EQUAL = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Allowed difference of two ways to the same result, relative to the largest entry."""


STEP = 1e-5
"""Step of finite differences."""


class ConformanceError(AssertionError):
    """A layer, a kernel or a likelihood breaks a requirement.

    Attributes:
        subject: the class that was checked.
        requirement: name of the requirement, that of the function that checks it.
        detail: what was found, and what is allowed.
        case: the Gram or the marginals with which it was found.
    """

    def __init__(self, subject: str, requirement: str, detail: str, case: str) -> None:
        super().__init__(subject, requirement, detail, case)
        self.subject, self.requirement, self.detail, self.case = subject, requirement, detail, case

    def __str__(self) -> str:
        return f"{self.subject} breaks '{self.requirement}': {self.detail} [{self.case}]"


class BrokenRequirementError(Exception):
    """A requirement does not hold; :func:`reported` adds what and when."""


@contextmanager
def reported(subject: object, requirement: str, case: str) -> Iterator[None]:
    """Whatever goes wrong inside the block becomes a :class:`ConformanceError`."""
    name = type(subject).__name__
    try:
        yield
    except BrokenRequirementError as broken:
        raise ConformanceError(name, requirement, str(broken), case) from None
    except Exception as error:
        detail = f"raised {type(error).__name__}: {error}"
        raise ConformanceError(name, requirement, detail, case) from error


def require(condition: bool, detail: str) -> None:
    """Raise unless ``condition`` holds."""
    if not condition:
        raise BrokenRequirementError(detail)


def require_finite(value: Tensor, what: str) -> None:
    """Raise if ``value`` has a NaN or an infinite entry."""
    bad = int((~torch.isfinite(value)).sum())
    require(bad == 0, f"{bad} of {value.numel()} entries of {what} are NaN or infinite")


def require_close(
    actual: Tensor, expected: Tensor, tolerance: float, what: str, *, least_scale: float = 1e-30
) -> None:
    """Raise if two tensors differ by more than ``tolerance`` times the largest entry expected.

    Where that entry is smaller than ``least_scale``, the tolerance is relative to the latter.
    """
    require(
        actual.shape == expected.shape,
        f"{what}: the shapes are {tuple(actual.shape)} and {tuple(expected.shape)}",
    )
    require_finite(actual, f"{what} (the former)")
    require_finite(expected, f"{what} (the latter)")
    if actual.numel() == 0:
        return
    allowed = tolerance * max(float(expected.detach().abs().max()), least_scale)
    difference = float((actual - expected).detach().abs().max())
    require(
        difference <= allowed, f"{what}: they differ by {difference:.3g}, allowed {allowed:.3g}"
    )


def require_not_negative(value: Tensor, slack: Tensor | float, what: str) -> None:
    """Raise if an entry of ``value`` lies below zero by more than ``slack``."""
    require_finite(value, what)
    smallest, allowed = float(value.min()), -float(slack)
    require(smallest >= allowed, f"{what} is {smallest:.3g} at worst, allowed {allowed:.3g}")


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

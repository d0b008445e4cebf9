"""Axes: where values lie, which of them are marked, and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MISSING = "–"


@dataclass(frozen=True)
class Axis:
    """Maps values from ``low`` to ``high`` onto a length, evenly or by their logarithms."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; one outside lies at the nearest end."""
        value = min(max(value, self.low), self.high)
        low, high = self._of(self.low), self._of(self.high)
        return self.start + (self._of(value) - low) / (high - low) * (self.end - self.start)

    def ticks(self, about: int = 6, *, whole: bool = False) -> list[float]:
        """Round values to mark, about so many; with ``whole``, whole numbers only."""
        if self.log:
            return _log_ticks(self.low, self.high)
        step = _round_step((self.high - self.low) / about)
        step = max(step, 1.0) if whole else step
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first
        return [(first + k) * step for k in range(count + 1)]

    def _of(self, value: float) -> float:
        return math.log10(value) if self.log else value


def axis_for(
    values: Iterable[float],
    start: float,
    end: float,
    *,
    log: bool | None = False,
    low: float | None = None,
    high: float | None = None,
) -> Axis:
    """An axis that holds all values that are finite, between bounds where these are given.

    Where ``log`` is None, it is logarithmic if all values are positive and the largest is more than
    eight times the smallest.
    """
    finite = [value for value in values if math.isfinite(value)]
    if log is None:
        log = bool(finite) and min(finite) > 0 and max(finite) > 8 * min(finite)
    if log:
        finite = [value for value in finite if value > 0] or [0.1, 1.0]
    least = min(finite, default=0.0) if low is None else low
    most = max(finite, default=1.0) if high is None else high
    if log:
        if most <= least:
            least, most = least / 2, most * 2
        return Axis(least / 1.1, most * 1.1, start, end, log=True)
    margin = (most - least) * 0.05 or max(abs(most) * 0.1, 1e-9)
    least -= margin if low is None else 0.0
    most += margin if high is None else 0.0
    return Axis(least, most, start, end)


def _round_step(step: float) -> float:
    size = 10.0 ** math.floor(math.log10(step))
    return next(size * factor for factor in (1, 2, 5, 10) if step <= size * factor * 1.0001)


def _log_ticks(low: float, high: float) -> list[float]:
    decades = math.log10(high / low)
    factors = (1, 2, 5) if decades < 2.2 else (1,)
    every = max(math.ceil(decades / 6), 1)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [f * 10.0**e for e in exponents if e % every == 0 for f in factors]
    return [value for value in values if low <= value <= high]


def fitted(name: str, letters: int) -> str:
    """A name that is cut where it is longer than its place.

    >>> fitted("stage1.block1", 20), fitted("a very long name", 10)
    ('stage1.block1', 'a very lo…')
    """
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def short(value: float | None) -> str:
    """A number as briefly as three digits allow.

    >>> short(0.12345), short(-12.0), short(1234567.0), short(0.00001), short(None)
    ('0.123', '−12', '1,234,567', '1e−5', '–')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    if value and not 1e-4 <= abs(value) < 1e7:
        mantissa, exponent = f"{value:.2e}".split("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    elif abs(value) >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.3g}"
    return text.replace("-", "−")


def percent(share: float | None) -> str:
    """A share in per cent, with as many digits as tell 99.9 from 100.

    >>> percent(0.9915), percent(0.5), percent(1.0)
    ('99.15%', '50%', '100%')
    """
    if share is None or not math.isfinite(share):
        return MISSING
    return f"{100 * share:.2f}".rstrip("0").rstrip(".").replace("-", "−") + "%"

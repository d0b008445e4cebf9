r"""The paper's statistics: mean and standard error over seeds, and Welch's t-test at 5%.

With :math:`n` seeds, mean :math:`m` and standard deviation :math:`s` (divided by :math:`n-1`), the
standard error is :math:`e = s/\sqrt n`, and two settings are compared by
:math:`t = (m_1 - m_2)/\sqrt{e_1^2 + e_2^2}`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from pydantic import model_validator

from convdkm.lab.studies.folder import Part

LEVEL = 0.05
PUBLISHED_SEEDS = 4

_VALUE = re.compile(r"(?P<mean>-?\d+(\.\d+)?)( ± (?P<error>\d+(\.\d+)?))?(?P<bold> bold)?")


class Published(Part):
    """A figure as printed: mean, standard error over four seeds, and whether it is bold.

    ``unit`` is that of its last digit; accuracies are in per cent. It can be made from text such as
    ``99.20 ± 0.02 bold``.
    """

    mean: float
    error: float | None = None
    bold: bool = False
    unit: float = 0.01

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return value
        found = _VALUE.fullmatch(str(value))
        if found is None:
            raise ValueError(f"a published figure reads like '99.20 ± 0.02 bold', got {value!r}")
        digits = len(found["mean"].partition(".")[2])
        return {**found.groupdict(), "bold": bool(found["bold"]), "unit": 10.0**-digits}


@dataclass(frozen=True)
class Summary:
    """Mean and standard error of some seeds; no error for a single one."""

    mean: float
    error: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary | None:
        """Of some values; None of none."""
        if not values:
            return None
        count = len(values)
        error = None if count == 1 else stdev(values) / math.sqrt(count)
        return cls(fmean(values), error, count)

    @classmethod
    def of_published(cls, figure: Published) -> Summary:
        """A printed figure; an error that rounds to nothing counts as half of its last digit."""
        if figure.error is None:
            return cls(figure.mean, None, 1)
        return cls(figure.mean, max(figure.error, figure.unit / 2), PUBLISHED_SEEDS)


def p_greater(first: Summary, second: Summary) -> float | None:
    """One-tailed p-value of ``first`` being no better than ``second``; None without errors."""
    return _welch(first, second, "greater")


def p_different(first: Summary, second: Summary) -> float | None:
    """Two-tailed p-value of the two being the same; None without errors."""
    return _welch(first, second, "two-sided")


def similar_to_best(summaries: Mapping[str, Summary]) -> frozenset[str]:
    """The best by its mean, and all that are not significantly worse than it.

    Without errors to test by, the best alone, and what equals it.
    """
    if not summaries:
        return frozenset()
    best = max(summaries.values(), key=lambda each: each.mean)
    similar = set()
    for name, each in summaries.items():
        p = p_greater(best, each)
        if each.mean == best.mean or (p is not None and p >= LEVEL):
            similar.add(name)
    return frozenset(similar)


def _welch(first: Summary, second: Summary, alternative: str) -> float | None:
    from scipy import stats

    if first.error is None or second.error is None:
        return None
    if first.error == second.error == 0:
        if alternative == "greater":
            return 0.0 if first.mean > second.mean else 1.0
        return 1.0 if first.mean == second.mean else 0.0
    result = stats.ttest_ind_from_stats(
        first.mean,
        first.error * math.sqrt(first.count),
        first.count,
        second.mean,
        second.error * math.sqrt(second.count),
        second.count,
        equal_var=False,
        alternative=alternative,
    )
    return float(result.pvalue)

r"""The paper's statistics: mean and standard error over seeds, and Welch's t-test at 5%.

With :math:`n` seeds, mean :math:`m` and standard deviation :math:`s` (divided by :math:`n-1`), the
standard error is :math:`e = s/\sqrt n`, and two settings are compared by
:math:`t = (m_1 - m_2)/\sqrt{e_1^2 + e_2^2}`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, Literal

from pydantic import model_validator

from convdkm.lab.studies.folder import Part, Status

LEVEL = 0.05
PUBLISHED_SEEDS = 4
Mark = Literal["above", "below"]

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
        """The summary of some values; None where there are none."""
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


def p_value(
    first: Summary, second: Summary, alternative: Literal["greater", "two-sided"]
) -> float | None:
    """P-value of Welch's t-test; None without errors.

    The hypothesis is that ``first`` is no better than ``second`` (``greater``), or that the two are
    the same (``two-sided``).
    """
    from scipy.stats import ttest_ind_from_stats

    if first.error is None or second.error is None:
        return None
    if first.error == second.error == 0:
        greater = alternative == "greater"
        apart = first.mean > second.mean if greater else first.mean != second.mean
        return 0.0 if apart else 1.0
    one = first.mean, first.error * math.sqrt(first.count), first.count
    other = second.mean, second.error * math.sqrt(second.count), second.count
    result = ttest_ind_from_stats(*one, *other, equal_var=False, alternative=alternative)
    return float(result.pvalue)


def similar_to_best(summaries: Mapping[str, Summary]) -> frozenset[str]:
    """The best by its mean, and all that are not significantly worse than it.

    Without errors to test by, the best alone, and what equals it.
    """
    if not summaries:
        return frozenset()
    best = max(summaries.values(), key=lambda each: each.mean)
    return frozenset(
        name
        for name, each in summaries.items()
        if each.mean == best.mean or (p_value(best, each, "greater") or 0.0) >= LEVEL
    )


@dataclass(frozen=True)
class Cell:
    """One row of a table in one column, over its seeds.

    Attributes:
        ours: over the seeds that have the metric; accuracies in per cent.
        planned: seeds that were planned; 0 where the study does not have it.
        failed: seeds that failed.
        published: what the paper prints.
        bold: whether ours is the best of its column, or not significantly worse.
    """

    ours: Summary | None = None
    planned: int = 0
    failed: int = 0
    published: Published | None = None
    bold: bool = False

    @classmethod
    def of(cls, states: Sequence[Status], metric: str, published: Published | None = None) -> Cell:
        """The cell of a metric, from the states of the planned seeds."""
        factor = 100 if metric.endswith("accuracy") else 1
        values = [factor * each.metrics[metric] for each in states if metric in each.metrics]
        failed = sum(each.state == "failed" for each in states)
        return cls(Summary.of(values), len(states), failed, published)

    @property
    def count(self) -> int:
        """Seeds that have the metric."""
        return 0 if self.ours is None else self.ours.count

    @property
    def complete(self) -> bool:
        """Whether every planned seed has the metric."""
        return self.planned == self.count

    @property
    def difference(self) -> Mark | None:
        """Where ours differs significantly from the published."""
        if self.ours is None or self.published is None:
            return None
        p = p_value(self.ours, Summary.of_published(self.published), "two-sided")
        if p is None or p >= LEVEL:
            return None
        return "above" if self.ours.mean > self.published.mean else "below"


def best_in_bold(
    cells: Mapping[str, Cell], others: Mapping[str, Summary] | None = None
) -> dict[str, Cell]:
    """The cells of a column by row, bold where they are similar to its best.

    Args:
        cells: the column.
        others: rows of others, whose figures count, but are not ours to be bold.
    """
    ours = {name: cell.ours for name, cell in cells.items() if cell.ours is not None}
    best = similar_to_best({**ours, **(others or {})})
    return {name: replace(cell, bold=name in best & ours.keys()) for name, cell in cells.items()}

"""Cells of tables: one setting, or one method, in one column, over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from convdkm.lab.studies.folder import Status
from convdkm.lab.studies.statistics import LEVEL, Published, Summary, p_different, similar_to_best

Mark = Literal["above", "below"]


@dataclass(frozen=True)
class Cell:
    """One row in one column.

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
        """The cell of a metric, from how far each planned seed has come."""
        factor = 100 if metric.endswith("accuracy") else 1
        values = [factor * each.metrics[metric] for each in states if metric in each.metrics]
        failed = sum(each.state == "failed" for each in states)
        return cls(Summary.of(values), len(states), failed, published)

    @property
    def count(self) -> int:
        """Seeds that are there."""
        return 0 if self.ours is None else self.ours.count

    @property
    def complete(self) -> bool:
        """Whether every planned seed is there."""
        return self.planned == self.count

    @property
    def difference(self) -> Mark | None:
        """Where ours differs significantly from the published."""
        if self.ours is None or self.published is None:
            return None
        p = p_different(self.ours, Summary.of_published(self.published))
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

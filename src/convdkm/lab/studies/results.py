"""What came out of a sweep, cell by cell, beside what is published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from convdkm.data.registry import is_known, known_set
from convdkm.lab.studies.folder import Record, Status, SweepFolder
from convdkm.lab.studies.planning import PlannedRun, Selection, planned_cell, scale_notes
from convdkm.lab.studies.specification import (
    COLLECTIONS,
    METRICS,
    Category,
    Published,
    Row,
    category,
    collection,
)
from convdkm.lab.studies.statistics import LEVEL, Summary, p_different, similar_to_best

Difference = Literal["above", "below"]


@dataclass(frozen=True)
class Cell:
    """One setting on one data set, in one metric.

    Attributes:
        ours: over the finished seeds; None where there is none, or the row is of others.
        planned: seeds that were planned; 0 where the sweep does not have it.
        failed: seeds that failed.
        published: what the paper prints.
        bold: whether ours is the best of its category, or not significantly worse.
        difference: where ours differs significantly from the published.
    """

    ours: Summary | None
    planned: int
    failed: int
    published: Published | None
    bold: bool = False
    difference: Difference | None = None

    @property
    def complete(self) -> bool:
        """Whether every planned seed is there."""
        return self.planned == (0 if self.ours is None else self.ours.count)


@dataclass(frozen=True)
class Line:
    """A row of a block: its setting, a cell for each data set, and seconds an epoch takes."""

    row: Row
    cells: tuple[Cell, ...]
    seconds: float | None = None
    published_seconds: float | None = None


@dataclass(frozen=True)
class Block:
    """The rows of one category in one metric."""

    category: Category
    metric: str
    title: str
    lines: tuple[Line, ...]

    @property
    def timed(self) -> bool:
        """Whether it says how long an epoch takes."""
        return any(line.published_seconds is not None for line in self.lines)


@dataclass(frozen=True)
class TableResult:
    """A table as it will be shown.

    Attributes:
        name, title: of the table.
        heading: of the column of settings.
        datasets: its columns.
        blocks: under one another.
        scale: how it differs from the paper's scale, in words; empty if it does not.
        notes: what is missing and why, and what else is to be said.
    """

    name: str
    title: str
    heading: str
    datasets: tuple[str, ...]
    blocks: tuple[Block, ...]
    scale: tuple[str, ...]
    notes: tuple[str, ...]


class Results:
    """The runs of a sweep, read once.

    Args:
        path: folder of the sweep.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = SweepFolder(path)
        self.record: Record = self.folder.read()
        self._status: dict[str, Status] = {}
        self._runs: dict[tuple[str, str, str], list[PlannedRun]] = {}

    def status(self, run: PlannedRun) -> Status:
        """How far a run has come."""
        if run.place not in self._status:
            self._status[run.place] = self.folder.status(run)
        return self._status[run.place]

    def tables(self) -> Iterator[TableResult]:
        """Every table of the sweep: a collection, then each of its categories; each once."""
        seen = set()
        for name, chosen in self.record.tables.items():
            if name in COLLECTIONS:
                yield self._collection(name, chosen)
            for part in chosen.rows:
                if part not in seen:
                    seen.add(part)
                    yield self._category(part, self._chosen(part) or chosen)

    def runs(self, table: Category, row: Row, dataset: str) -> list[PlannedRun]:
        """The planned runs of a cell; none where the sweep does not have it."""
        chosen = self._chosen(table.name)
        if chosen is None or row.name not in chosen.rows[table.name]:
            return []
        if dataset not in chosen.datasets:
            return []
        key = (table.name, row.name, dataset)
        if key not in self._runs:
            scale = self.record.scale
            self._runs[key] = planned_cell(table, row, dataset, chosen.seeds, scale)
        return self._runs[key]

    def _chosen(self, part: str) -> Selection | None:
        """What of a category is planned, by whichever tables ask for it; None if nothing is."""
        found: Selection | None = None
        for chosen in self.record.tables.values():
            if part in chosen.rows:
                narrowed = chosen.model_copy(update={"rows": {part: chosen.rows[part]}})
                found = narrowed if found is None else found.merged(narrowed)
        return found

    def _collection(self, name: str, chosen: Selection) -> TableResult:
        table = collection(name)
        parts = [category(part) for part in table.categories]
        blocks = [self._block(part, table.metric, chosen.datasets, part.title) for part in parts]
        return self._result(
            name, table.title, "Setting", chosen, blocks, metric=METRICS[table.metric]
        )

    def _category(self, name: str, chosen: Selection) -> TableResult:
        part = category(name)
        blocks = [
            self._block(part, metric, chosen.datasets, METRICS[metric]) for metric in part.metrics
        ]
        return self._result(name, part.title, part.heading, chosen, blocks)

    def _result(
        self,
        name: str,
        title: str,
        heading: str,
        chosen: Selection,
        blocks: Sequence[Block],
        *,
        metric: str = "",
    ) -> TableResult:
        parts = list(dict.fromkeys(block.category.name for block in blocks))
        tables = [category(part) for part in parts]
        scale = scale_notes(
            tables, self.record.scale, {"seeds": chosen.seeds, "datasets": chosen.datasets}
        )
        notes = [part.note for part in tables if part.note is not None]
        if chosen.seeds == 1:
            notes.append("One seed has no standard error; bold is the best of the column alone.")
        return TableResult(
            name,
            f"{title}: {metric[0].lower()}{metric[1:]}" if metric else title,
            heading,
            chosen.datasets,
            tuple(block for block in blocks if block.lines),
            tuple(scale),
            (*notes, *self._holes(tables, chosen)),
        )

    def _block(self, table: Category, metric: str, datasets: Sequence[str], title: str) -> Block:
        lines = []
        for row in table.rows:
            cells = tuple(self._cell(table, metric, row, dataset) for dataset in datasets)
            if not any(cell.planned or cell.published for cell in cells):
                continue
            timed = metric == "test_accuracy" and table.seconds_per_epoch
            lines.append(
                Line(
                    row,
                    cells,
                    self._seconds(table, row, datasets) if timed else None,
                    table.seconds_per_epoch.get(row.name) if timed else None,
                )
            )
        for column in range(len(datasets)):
            _make_bold(lines, column)
        return Block(table, metric, title, tuple(lines))

    def _cell(self, table: Category, metric: str, row: Row, dataset: str) -> Cell:
        published = table.figure(metric, row.name, dataset)
        if row.options is None:
            return Cell(None, 0, 0, published)
        factor = 100 if metric.endswith("accuracy") else 1
        states = [self.status(run) for run in self.runs(table, row, dataset)]
        values = [factor * each.metrics[metric] for each in states if each.metrics is not None]
        failed = sum(each.state == "failed" for each in states)
        ours = Summary.of(values)
        return Cell(ours, len(states), failed, published, difference=_difference(ours, published))

    def _seconds(self, table: Category, row: Row, datasets: Sequence[str]) -> float | None:
        """Mean time of an epoch over the finished runs of a row, evaluations included."""
        values = []
        for dataset in datasets:
            for run in self.runs(table, row, dataset):
                metrics = self.status(run).metrics
                if metrics is not None:
                    values.append(metrics["seconds"] / metrics["epochs"])
        return sum(values) / len(values) if values else None

    def _holes(self, tables: Sequence[Category], chosen: Selection) -> Iterator[str]:
        """What is not there, and why."""
        runs = {
            run.place: run
            for table in tables
            for row in table.own_rows
            for dataset in chosen.datasets
            for run in self.runs(table, row, dataset)
        }
        missing = 0
        for run in runs.values():
            status = self.status(run)
            if status.state == "failed":
                yield f"Failed: {run.title}: {status.detail} (see {self.folder.log(run)})"
            elif status.state == "other":
                yield f"Left out, since its settings differ: {run.title}: {status.detail}"
            missing += status.state in ("missing", "begun")
        if missing:
            yield f"Not finished: {missing} of {len(runs)} runs; the same sweep goes on with them."


def dataset_title(name: str) -> str:
    """A data set as the head of a column."""
    return known_set(name).title if is_known(name) else Path(name).stem or name


def _difference(ours: Summary | None, published: Published | None) -> Difference | None:
    if ours is None or published is None:
        return None
    p = p_different(ours, Summary.of_published(published))
    if p is None or p >= LEVEL:
        return None
    return "above" if ours.mean > published.mean else "below"


def _counted(line: Line, column: int) -> Summary | None:
    cell = line.cells[column]
    if line.row.options is None and cell.published is not None:
        return Summary.of_published(cell.published)
    return cell.ours


def _make_bold(lines: list[Line], column: int) -> None:
    """Mark what is similar to the best of a column; the methods of others count as published."""
    summaries = {line.row.name: _counted(line, column) for line in lines}
    best = similar_to_best({name: each for name, each in summaries.items() if each is not None})
    for index, line in enumerate(lines):
        if line.row.name in best and line.row.options is not None:
            cells = list(line.cells)
            cells[column] = replace(cells[column], bold=True)
            lines[index] = replace(line, cells=tuple(cells))

"""What came out of a sweep, cell by cell, beside what is published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from convdkm.lab.studies.folder import Status
from convdkm.lab.studies.rendering import Mark
from convdkm.lab.studies.statistics import (
    LEVEL,
    Published,
    Summary,
    p_different,
    similar_to_best,
)
from convdkm.lab.studies.sweeps.folder import Record, SweepFolder
from convdkm.lab.studies.sweeps.planning import PlannedRun, Selection, planned_cell, scale_notes
from convdkm.lab.studies.sweeps.specification import (
    COLLECTIONS,
    METRICS,
    Category,
    Row,
    category,
    collection,
)
from convdkm.lab.studies.sweeps.table import Block, Cell, Line, TableResult


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
                whole, sets = collection(name), chosen.datasets
                parts = [category(part) for part in whole.categories]
                blocks = [self._block(part, whole.metric, sets, part.title) for part in parts]
                metric = METRICS[whole.metric]
                title = f"{whole.title}: {metric[0].lower()}{metric[1:]}"
                yield self._result(name, title, "Setting", chosen, blocks)
            for part in (category(each) for each in chosen.rows if each not in seen):
                seen.add(part.name)
                either = self._chosen(part.name) or chosen
                blocks = [self._block(part, m, either.datasets, METRICS[m]) for m in part.metrics]
                yield self._result(part.name, part.title, part.heading, either, blocks)

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

    def _result(
        self, name: str, title: str, heading: str, chosen: Selection, blocks: Sequence[Block]
    ) -> TableResult:
        tables = [category(part) for part in dict.fromkeys(b.category.name for b in blocks)]
        scale = scale_notes(tables, self.record.scale, chosen)
        notes = [part.note for part in tables if part.note is not None]
        if chosen.seeds == 1:
            notes.append("One seed has no standard error; bold is the best of the column alone.")
        return TableResult(
            name,
            title,
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
        states = [self.status(run) for run in self.runs(table, row, dataset)]
        failed = sum(each.state == "failed" for each in states)
        ours = Summary.over(states, metric)
        return Cell(ours, len(states), failed, published, difference=_difference(ours, published))

    def _seconds(self, table: Category, row: Row, datasets: Sequence[str]) -> float | None:
        """Mean time of an epoch over the finished runs of a row, evaluations included."""
        values = []
        for dataset in datasets:
            for run in self.runs(table, row, dataset):
                metrics = self.status(run).metrics
                if metrics:
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
                yield f"Failed: {run.title}: {status.error} (see {self.folder.file(run, 'log')})"
            elif status.state == "other":
                yield f"Left out, since its settings differ: {run.title}: {status.error}"
            missing += status.state in ("missing", "begun")
        if missing:
            yield f"Not finished: {missing} of {len(runs)} runs; the same sweep goes on with them."


def _difference(ours: Summary | None, published: Published | None) -> Mark | None:
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

"""What came out of a sweep, cell by cell, beside what is published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from convdkm.lab.studies.cells import Cell, best_in_bold
from convdkm.lab.studies.folder import Status
from convdkm.lab.studies.statistics import Summary
from convdkm.lab.studies.sweeps.folder import Record, SweepFolder
from convdkm.lab.studies.sweeps.planning import (
    PlannedRun,
    Selection,
    merged_by_name,
    planned_cell,
    scale_notes,
)
from convdkm.lab.studies.sweeps.specification import (
    COLLECTIONS,
    METRICS,
    Category,
    Row,
    category,
    collection,
)
from convdkm.lab.studies.sweeps.table import Block, Line, TableResult


class Results:
    """The runs of a sweep, read once.

    Args:
        path: folder of the sweep.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = SweepFolder(path)
        self.record: Record = self.folder.read()
        # What is planned of each category, by whichever tables ask for it.
        self._chosen = merged_by_name(
            (name, chosen.model_copy(update={"rows": {name: rows}}))
            for chosen in self.record.tables.values()
            for name, rows in chosen.rows.items()
        )
        self._runs = {
            (name, row.name, dataset): planned_cell(
                category(name), row, dataset, chosen.seeds, self.record.scale
            )
            for name, chosen in self._chosen.items()
            for row in category(name).runnable_rows
            if row.name in chosen.rows[name]
            for dataset in chosen.datasets
        }
        every = {run.place: run for runs in self._runs.values() for run in runs}
        self._status = {place: self.folder.status(run) for place, run in every.items()}

    def status(self, run: PlannedRun) -> Status:
        """How far a run has come."""
        return self._status[run.place]

    def runs(self, table: Category, row: Row, dataset: str) -> list[PlannedRun]:
        """The planned runs of a cell; none where the sweep does not have it."""
        return self._runs.get((table.name, row.name, dataset), [])

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
                either = self._chosen[part.name]
                blocks = [self._block(part, m, either.datasets, METRICS[m]) for m in part.metrics]
                yield self._result(part.name, part.title, part.heading, either, blocks)

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
        columns = [self._column(table, metric, dataset) for dataset in datasets]
        times = table.seconds_per_epoch if metric == "test_accuracy" else {}
        lines = []
        for row in table.rows:
            cells = tuple(column[row.name] for column in columns)
            if any(cell.planned or cell.published for cell in cells):
                seconds = self._seconds(table, row, datasets) if times else None
                lines.append(Line(row, cells, (seconds, times.get(row.name))))
        return Block(table, metric, title, tuple(lines))

    def _column(self, table: Category, metric: str, dataset: str) -> dict[str, Cell]:
        """The cells of a data set by row; methods of others count as published."""
        cells, others = {}, {}
        for row in table.rows:
            states = [self.status(run) for run in self.runs(table, row, dataset)]
            published = table.figure(metric, row.name, dataset)
            cells[row.name] = Cell.of(states, metric, published)
            if row.options is None and published is not None:
                others[row.name] = Summary.of_published(published)
        return best_in_bold(cells, others)

    def _seconds(self, table: Category, row: Row, datasets: Sequence[str]) -> float | None:
        """Mean time of an epoch over the finished runs of a row, evaluations included."""
        runs = [run for dataset in datasets for run in self.runs(table, row, dataset)]
        found = [metrics for run in runs if (metrics := self.status(run).metrics)]
        return fmean(each["seconds"] / each["epochs"] for each in found) if found else None

    def _holes(self, tables: Sequence[Category], chosen: Selection) -> Iterator[str]:
        """What is not there, and why."""
        runs = {
            run.place: run
            for table in tables
            for row in table.runnable_rows
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

"""The results of a sweep as tables: ours beside the published, data set by data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from convdkm.data.registry import is_known, known_set
from convdkm.lab.studies.folder import Status
from convdkm.lab.studies.rendering import (
    LATEX,
    OVER_SEEDS,
    Figure,
    Grid,
    Table,
    latex_line,
    latex_table,
    rounded,
    with_error,
)
from convdkm.lab.studies.statistics import Cell, Summary, best_in_bold
from convdkm.lab.studies.sweeps.planning import (
    PlannedRun,
    Record,
    Selection,
    SweepFolder,
    merged_by_name,
    planned_cells,
    scale_notes,
)
from convdkm.lab.studies.sweeps.specification import (
    METRICS,
    SELECTION,
    Category,
    Row,
    categories_of,
    category,
)
from convdkm.storage.text import in_latex

COSTS = {"PFLOP": ("flops", 1e15), "CPU (h)": ("cpu_seconds", 3600.0)}
"""Columns of what a run costs, each with a figure of runs and its unit."""
NO_COSTS = (None,) * len(COSTS)
WIDE = 6
"""Columns beyond which a table of LaTeX is shrunk to the width of the text."""


@dataclass(frozen=True)
class Line:
    """A row of a block: its setting, a cell for each data set, seconds of an epoch, and costs.

    ``seconds`` are ours and the published. ``costs`` are means over the finished runs: PFLOP and
    hours of processors, None where runs of older versions do not say.
    """

    row: Row
    cells: tuple[Cell, ...]
    seconds: tuple[float | None, float | None] = (None, None)
    costs: tuple[float | None, ...] = NO_COSTS

    def shown(self, metric: str) -> list[Figure]:
        """Ours and the published of every data set, with the count of seeds if not all."""
        figures = []
        for cell in self.cells:
            failed = f", {cell.failed} failed" if cell.failed else ""
            note = "" if cell.complete else f"{cell.count} of {cell.planned}{failed}"
            printed = cell.published
            figures += [
                Figure(with_error(cell.ours, metric), cell.bold, cell.difference, note),
                Figure(with_error(printed, metric), printed is not None and printed.bold),
            ]
        return figures


@dataclass(frozen=True)
class Block:
    """The rows of one category in one metric."""

    category: Category
    metric: str
    title: str
    lines: tuple[Line, ...]

    @property
    def timed(self) -> bool:
        """Whether it has the time of an epoch."""
        return any(line.seconds[1] is not None for line in self.lines)

    @property
    def costed(self) -> bool:
        """Whether it has the costs of a run."""
        return any(cost is not None for line in self.lines for cost in line.costs)

    @property
    def sourced(self) -> bool:
        """Whether it has methods of others."""
        return any(line.row.source for line in self.lines)


@dataclass(frozen=True)
class TableResult(Table):
    """A table as it will be shown.

    Attributes:
        heading: of the column of settings.
        datasets: its columns.
        scale: how it differs from the paper's scale, in words; empty if it does not.
    """

    name: str
    title: str
    heading: str
    datasets: tuple[str, ...]
    blocks: tuple[Block, ...]
    scale: tuple[str, ...]
    notes: tuple[str, ...]

    legend = f"{OVER_SEEDS} ▲ ▼: significantly above or below the published value (two-tailed, 5%)."

    @property
    def lead(self) -> tuple[str, str]:
        if not self.scale:
            return "", "At the scale of the paper."
        return "Not at the scale of the paper", f": {'; '.join(self.scale)}."

    @property
    def scale_sentence(self) -> str:
        """How the scale differs from the paper's; empty if it does not."""
        return "".join(self.lead) if self.scale else ""

    def grids(self) -> Iterator[Grid]:
        for block in self.blocks:
            columns = [*map(dataset_title, self.datasets), *(["s / epoch"] * block.timed)]
            labels = ["Paper"] * block.sourced + [self.heading]
            head = [*labels, *(each for column in columns for each in (column, "published"))]
            head += [*COSTS] * block.costed
            rows: list[list[str | Figure]] = [
                [
                    *([line.row.source or ""] * block.sourced),
                    line.row.label,
                    *line.shown(block.metric),
                    *([rounded(value, "") for value in line.seconds] * block.timed),
                    *([rounded(value) for value in line.costs] * block.costed),
                ]
                for line in block.lines
            ]
            yield Grid(head, rows, block.title, len(labels))

    def latex(self) -> str:
        """As in the paper: blocks under one another, with their titles beside them."""
        sourced = any(block.sourced for block in self.blocks)
        timed = any(block.timed for block in self.blocks)
        heading = in_latex(self.heading)
        if len({block.category.name for block in self.blocks}) == 1:
            heading = self.blocks[0].category.latex_heading or heading
        first = ["", "Paper", "Method"] if sourced else ["", heading]
        pairs = [*map(dataset_title, self.datasets), *(["Time per epoch (s)"] * timed)]
        heads = [rf"\multicolumn{{2}}{{c}}{{{in_latex(each)}}}" for each in pairs]
        columns = len(first) + 2 * len(pairs)
        starts = range(len(first) + 1, columns, 2)
        lines = [
            latex_line([*([""] * len(first)), *heads]),
            "".join(rf"\cmidrule(lr){{{start}-{start + 1}}}" for start in starts),
            latex_line([*first, *(["ours", "published"] * len(pairs))]),
        ]
        for block in self.blocks:
            lines += [r"\midrule", *_latex_rows(block, sourced=sourced, timed=timed)]
        caption = (
            rf"{in_latex(self.title)}. Mean $\pm$ standard error over seeds. Bold shows values"
            r" statistically similar to the maximum in each category, according to a one-tailed"
            r" Welch test; $\blacktriangle$ and $\blacktriangledown$ values significantly above and"
            rf" below the published. {in_latex(self.scale_sentence)}"
        )
        return latex_table(
            "amssymb, booktabs, graphicx, multirow",
            caption.rstrip(),
            self.name,
            "l" * len(first) + "c" * (columns - len(first)),
            lines,
            notes=self.notes,
            wide=columns > WIDE,
        )

    def records(self) -> Iterator[Mapping[str, object]]:
        for block in self.blocks:
            for line in block.lines:
                for dataset, cell in zip(self.datasets, line.cells, strict=True):
                    ours, published = cell.ours, cell.published
                    yield {
                        "table": self.name,
                        "category": block.category.name,
                        "row": line.row.name,
                        "setting": line.row.label,
                        "dataset": dataset,
                        "metric": block.metric,
                        "mean": ours and ours.mean,
                        "standard_error": ours and ours.error,
                        "seeds": cell.count,
                        "seeds_planned": cell.planned,
                        "seeds_failed": cell.failed,
                        "bold": int(cell.bold),
                        "published_mean": published and published.mean,
                        "published_standard_error": published and published.error,
                        "published_bold": published and int(published.bold),
                        "difference": cell.difference,
                        "seconds_per_epoch": line.seconds[0],
                        "published_seconds_per_epoch": line.seconds[1],
                        "pflop": line.costs[0],
                        "cpu_hours": line.costs[1],
                        "scale": "; ".join(self.scale) or "as in the paper",
                    }


def _latex_rows(block: Block, *, sourced: bool, timed: bool) -> Iterator[str]:
    """With the title beside the first, or where there are methods of others that of their group."""
    before: object = ...
    for index, line in enumerate(block.lines):
        if sourced:
            group, title = line.row.group, in_latex(f"Kernel methods {line.row.group or ''}")
            if index and group != before:
                yield r"\midrule"
            first = [title if group and group != before else "", in_latex(line.row.source or "")]
            before = group
        else:
            title = rf"\multirow{{{len(block.lines)}}}{{*}}{{{in_latex(block.title)}}}"
            first = [title if index == 0 else ""]
        times: Sequence[float | None] = line.seconds if timed else ()
        yield latex_line(
            [
                *first,
                line.row.latex or in_latex(line.row.label),
                *map(LATEX.cell, line.shown(block.metric)),
                *("" if value is None else f"{value:.0f}" for value in times),
            ]
        )


def dataset_title(name: str) -> str:
    """A data set as the head of a column."""
    return known_set(name).title if is_known(name) else Path(name).stem or name


class Results:
    """The runs of a sweep, read once.

    Args:
        path: folder of the sweep.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = SweepFolder(path)
        self.record: Record = self.folder.read()
        # The plan of each category, by whichever tables ask for it.
        self._chosen = merged_by_name(
            (name, chosen.model_copy(update={"rows": {name: rows}}))
            for chosen in self.record.tables.values()
            for name, rows in chosen.rows.items()
        )
        self._runs: dict[tuple[str, str, str], list[PlannedRun]] = {}
        for name, chosen in self._chosen.items():
            self._runs |= planned_cells(name, chosen, self.record.scale)
        every = {run.place: run for runs in self._runs.values() for run in runs}
        self._status = {place: self.folder.status(run) for place, run in every.items()}

    def status(self, run: PlannedRun) -> Status:
        """The state of a run."""
        return self._status[run.place]

    def runs(self, table: Category, row: Row, dataset: str) -> list[PlannedRun]:
        """The planned runs of a cell; none where the sweep does not have it."""
        return self._runs.get((table.name, row.name, dataset), [])

    def tables(self) -> Iterator[TableResult]:
        """Every table of the sweep, each once; Table 1 comes before each of its categories."""
        seen = set()
        for name, chosen in self.record.tables.items():
            if name == SELECTION:
                accuracy = [(part, "test_accuracy", part.title) for part in categories_of(name)]
                yield self._table(
                    name, "Model selection: test accuracy (%)", "Setting", chosen, accuracy
                )
            for part in (category(each) for each in chosen.rows if each not in seen):
                seen.add(part.name)
                metrics = [(part, metric, METRICS[metric]) for metric in part.metrics]
                either = self._chosen[part.name]
                yield self._table(part.name, part.title, part.heading, either, metrics)

    def _table(
        self,
        name: str,
        title: str,
        heading: str,
        chosen: Selection,
        parts: Sequence[tuple[Category, str, str]],
    ) -> TableResult:
        """A table with a block for each category, metric and title."""
        blocks = [self._block(part, metric, chosen.datasets, each) for part, metric, each in parts]
        tables = list({part.name: part for part, _, _ in parts}.values())
        notes = [part.note for part in tables if part.note is not None]
        if chosen.seeds == 1:
            notes.append("One seed has no standard error; bold is the best of the column alone.")
        return TableResult(
            name,
            title,
            heading,
            chosen.datasets,
            tuple(block for block in blocks if block.lines),
            tuple(scale_notes(tables, self.record.scale, chosen)),
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
                costs = self._costs(table, row, datasets) if metric == "test_accuracy" else NO_COSTS
                lines.append(Line(row, cells, (seconds, times.get(row.name)), costs))
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

    def _finished(
        self, table: Category, row: Row, datasets: Sequence[str]
    ) -> list[Mapping[str, float]]:
        """The figures of the finished runs of a row."""
        runs = [run for dataset in datasets for run in self.runs(table, row, dataset)]
        return [metrics for run in runs if (metrics := self.status(run).metrics)]

    def _seconds(self, table: Category, row: Row, datasets: Sequence[str]) -> float | None:
        """Mean time of an epoch over the finished runs of a row, evaluations included."""
        found = self._finished(table, row, datasets)
        return fmean(each["seconds"] / each["epochs"] for each in found) if found else None

    def _costs(
        self, table: Category, row: Row, datasets: Sequence[str]
    ) -> tuple[float | None, ...]:
        """Means over the finished runs of a row that have the figure."""
        finished, means = self._finished(table, row, datasets), []
        for name, unit in COSTS.values():
            found = [metrics[name] / unit for metrics in finished if name in metrics]
            means.append(fmean(found) if found else None)
        return tuple(means)

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

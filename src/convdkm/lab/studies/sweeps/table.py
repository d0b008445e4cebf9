"""A table of a sweep: ours beside the published, data set by data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from convdkm.data.registry import is_known, known_set
from convdkm.lab.studies.cells import Cell
from convdkm.lab.studies.rendering import (
    LATEX,
    OVER_SEEDS,
    Figure,
    Grid,
    Table,
    Tabular,
    decimals,
    in_seconds,
    latex_line,
    with_error,
)
from convdkm.lab.studies.sweeps.specification import Category, Row
from convdkm.storage.text import in_latex

WIDE = 6
"""Columns beyond which a table of LaTeX is shrunk to the width of the text."""


@dataclass(frozen=True)
class Line:
    """A row of a block: its setting, a cell for each data set, and seconds of an epoch.

    ``seconds`` are ours and the published.
    """

    row: Row
    cells: tuple[Cell, ...]
    seconds: tuple[float | None, float | None] = (None, None)

    def shown(self, metric: str) -> list[Figure]:
        """Ours and the published of every data set, with how many seeds there are if not all."""
        digits, figures = decimals(metric), []
        for cell in self.cells:
            failed = f", {cell.failed} failed" if cell.failed else ""
            note = "" if cell.complete else f"{cell.count} of {cell.planned}{failed}"
            printed = cell.published
            figures += [
                Figure(with_error(cell.ours, digits), cell.bold, cell.difference, note),
                Figure(with_error(printed, digits), printed is not None and printed.bold),
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
        """Whether it says how long an epoch takes."""
        return any(line.seconds[1] is not None for line in self.lines)

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
            pairs = [(dataset_title(dataset), "published") for dataset in self.datasets]
            pairs += [("s / epoch", "published")] * block.timed
            head = ["Paper"] * block.sourced + [self.heading]
            rows: list[list[str | Figure]] = [
                [
                    *([line.row.source or ""] * block.sourced),
                    line.row.label,
                    *line.shown(block.metric),
                    *([in_seconds(value, "") for value in line.seconds] * block.timed),
                ]
                for line in block.lines
            ]
            yield Grid(
                [*head, *(each for pair in pairs for each in pair)], rows, block.title, len(head)
            )

    def tabular(self) -> Tabular:
        """As in the paper: blocks under one another, with their titles beside them."""
        sourced = any(block.sourced for block in self.blocks)
        timed = any(block.timed for block in self.blocks)
        first = ["", "Paper", "Method"] if sourced else ["", in_latex(self.heading)]
        one = len({block.category.name for block in self.blocks}) == 1
        if not sourced and one and self.blocks[0].category.latex_heading:
            first[1] = self.blocks[0].category.latex_heading
        heads = [*map(dataset_title, self.datasets), *(["Time per epoch (s)"] * timed)]
        columns = len(first) + 2 * len(heads)
        starts = range(len(first) + 1, columns, 2)
        lines = [
            latex_line(
                [
                    *([""] * len(first)),
                    *(rf"\multicolumn{{2}}{{c}}{{{in_latex(h)}}}" for h in heads),
                ]
            ),
            "".join(rf"\cmidrule(lr){{{start}-{start + 1}}}" for start in starts),
            latex_line([*first, *(["ours", "published"] * len(heads))]),
        ]
        for block in self.blocks:
            lines += [r"\midrule", *_latex_rows(block, sourced=sourced, timed=timed)]
        return Tabular(
            "amssymb, booktabs, graphicx, multirow",
            self._caption(),
            self.name,
            "l" * len(first) + "c" * (columns - len(first)),
            lines,
            columns > WIDE,
        )

    def _caption(self) -> str:
        legend = (
            r"Mean $\pm$ standard error over seeds. Bold shows values statistically similar to the"
            r" maximum in each category, according to a one-tailed Welch test; $\blacktriangle$ and"
            r" $\blacktriangledown$ values significantly above and below the published."
        )
        return f"{in_latex(self.title)}. {legend} {in_latex(self.scale_sentence)}".rstrip()

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

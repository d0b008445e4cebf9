"""Tables as text: Markdown, LaTeX with booktabs, CSV."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.statistics import Mark, Published, Summary
from convdkm.options import nearest
from convdkm.storage.files import write_text
from convdkm.storage.text import csv_cell, csv_line, in_latex, in_markdown, one_line

MISSING = "–"
FORMATS = ("markdown", "latex", "csv", "none")
"""Formats that tables are printed in; ``none`` prints nothing."""
OVER_SEEDS = (
    "Mean ± standard error over seeds. Bold: not significantly worse than the best of the column"
    " (one-tailed Welch test, 5%)."
)


@dataclass(frozen=True)
class Figure:
    """A figure in a cell: its text, how it compares with others, and a remark."""

    text: str
    bold: bool = False
    mark: Mark | None = None
    note: str = ""

    @property
    def after(self) -> str:
        """The remark, as it follows the figure."""
        return f" ({self.note})" if self.note else ""


@dataclass(frozen=True)
class Style:
    """How a format writes text, bold text and marks."""

    plain: Callable[[str], str]
    bold: str
    marks: Mapping[Mark, str]

    def cell(self, cell: str | Figure) -> str:
        """A cell that is no label."""
        if isinstance(cell, str):
            return self.plain(cell)
        text = self.plain(cell.text)
        shown = self.bold % text if cell.bold else text
        return f"{shown}{self.marks[cell.mark] if cell.mark else ''}{cell.after}"


MARKDOWN = Style(str, "**%s**", {"above": " ▲", "below": " ▼"})
LATEX = Style(
    in_latex,
    r"\textbf{%s}",
    {"above": r"$^{\blacktriangle}$", "below": r"$^{\blacktriangledown}$"},
)


@dataclass(frozen=True)
class Grid:
    """Rows under a head; the first columns are ``labels``."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Figure]]
    title: str = ""
    labels: int = 1

    def markdown(self) -> str:
        """The grid as a table of Markdown, with aligned columns."""
        labels = self.labels
        rows = [
            [*map(in_markdown, row[:labels]), *map(MARKDOWN.cell, row[labels:])]
            for row in self.rows
        ]
        head = [in_markdown(each) for each in self.head]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        rule = ["-" * width for width in widths[:labels]]
        rule += ["-" * (width - 1) + ":" for width in widths[labels:]]
        sides = ["<"] * labels + [">"] * (len(head) - labels)
        form = f"| {' | '.join(f'{{:{s}{w}}}' for s, w in zip(sides, widths, strict=True))} |"
        return "\n".join(form.format(*line) for line in (head, rule, *rows))


class Table(ABC):
    """A table of a study.

    Attributes:
        name: for files.
        title: at its head.
        notes: remarks, such as what is missing and why.
        legend: the meaning of its cells.
    """

    name: str
    title: str
    notes: tuple[str, ...]
    legend: ClassVar[str]

    @property
    @abstractmethod
    def lead(self) -> tuple[str, str]:
        """On what terms it was made: an emphasised part, and the rest."""

    @abstractmethod
    def grids(self) -> Iterator[Grid]:
        """Its parts, under one another."""

    @abstractmethod
    def latex(self) -> str:
        """The table as a ``table`` environment; see :func:`latex_table`."""

    @abstractmethod
    def records(self) -> Iterator[Mapping[str, object]]:
        """Lines of the CSV by their columns: nothing rounded, accuracies in per cent."""

    def markdown(self) -> str:
        """The table with its terms, its legend and its notes."""
        strong, rest = self.lead
        parts = [
            f"## {in_markdown(self.title)}",
            f"{f'**{strong}**' if strong else ''}{in_markdown(rest)}",
        ]
        for grid in self.grids():
            parts += [f"### {in_markdown(grid.title)}"] * bool(grid.title)
            parts.append(grid.markdown())
        parts.append(self.legend)
        if self.notes:
            parts.append("\n".join(f"- {in_markdown(note)}" for note in self.notes))
        return "\n\n".join(parts) + "\n"

    def comma_separated(self) -> str:
        """The table as CSV; blank where there is no value."""
        records = list(self.records())
        lines = [*map(list, records[:1]), *(map(csv_cell, each.values()) for each in records)]
        return "".join(map(csv_line, lines))


def latex_table(
    packages: str,
    caption: str,
    label: str,
    columns: str,
    lines: Iterable[str],
    *,
    notes: Iterable[str],
    wide: bool = True,
) -> str:
    """A whole ``table`` environment; its first line names the packages, notes are comments.

    ``columns`` are their alignments, and a ``wide`` table is shrunk to the width of the text.
    """
    text = [
        rf"% \usepackage{{{packages}}}",
        r"\begin{table}[t]",
        r"    \centering",
        rf"    \caption{{{caption}}}",
        rf"    \label{{tab:{label}}}",
        *([r"    \resizebox{\textwidth}{!}{"] * wide),
        rf"    \begin{{tabular}}{{{columns}}}",
        r"        \toprule",
        *(f"        {line}" for line in lines),
        r"        \bottomrule",
        r"    \end{tabular}" + "}" * wide,
        r"\end{table}",
        *(f"% {one_line(note)}" for note in notes),
    ]
    return "\n".join(text) + "\n"


def latex_line(cells: Iterable[str]) -> str:
    """Cells of LaTeX as a line of a table."""
    return f"{' & '.join(cells)} \\\\"


def check_format(form: str) -> None:
    """Raise if tables cannot be printed in that form."""
    if form not in FORMATS:
        raise InvalidInputError(
            f"there is no format {form!r}.{nearest(form, FORMATS)} There are {', '.join(FORMATS)}."
        )


def write_tables(tables: Iterable[Table], folder: Path, form: str) -> list[Path]:
    """Write tables in every format, and print them in one; the files written."""
    written = []
    for table in tables:
        for name, ending, text in (
            ("markdown", "md", table.markdown()),
            ("latex", "tex", table.latex()),
            ("csv", "csv", table.comma_separated()),
        ):
            written.append(folder / f"{table.name}.{ending}")
            write_text(written[-1], text)
            if name == form:
                print(text)
    return written


def with_error(value: Summary | Published | None, metric: str) -> str:
    """Mean ± standard error, with as many digits as the paper prints for the metric.

    The mean alone where there is no error; a published value as printed.
    """
    if value is None:
        return MISSING
    digits = 2 if metric.endswith("accuracy") else 4
    if isinstance(value, Published):
        digits = round(-math.log10(value.unit))
    mean = f"{value.mean:.{digits}f}"
    return mean if value.error is None else f"{mean} ± {value.error:.{digits}f}"


def rounded(value: float | None, thousands: str = ",") -> str:
    """A time or a quantity, to two digits where it is small."""
    if value is None:
        return MISSING
    return f"{value:{thousands}.0f}" if value >= 10 else f"{value:.2g}"

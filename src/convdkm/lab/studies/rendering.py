"""Tables as text: Markdown, LaTeX with booktabs, CSV."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.cells import Mark
from convdkm.lab.studies.statistics import Published, Summary
from convdkm.options import nearest
from convdkm.storage.files import write_text
from convdkm.storage.text import csv_cell, csv_line, in_latex, in_markdown, one_line

MISSING = "–"
FORMATS = {"markdown": "md", "latex": "tex", "csv": "csv"}
"""Formats, and how their files end."""
NOTHING = "none"
OVER_SEEDS = (
    "Mean ± standard error over seeds. Bold: not significantly worse than the best of the column"
    " (one-tailed Welch test, 5%)."
)


@dataclass(frozen=True)
class Figure:
    """A figure in a cell: as text, how it compares with others, and what is to be said of it."""

    text: str
    bold: bool = False
    mark: Mark | None = None
    note: str = ""

    @property
    def after(self) -> str:
        """The note, as it follows the figure."""
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
        """As a table of Markdown, which is one to the eye too."""
        rows = [
            [*map(in_markdown, row[: self.labels]), *map(MARKDOWN.cell, row[self.labels :])]
            for row in self.rows
        ]
        head = [in_markdown(each) for each in self.head]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        rule = [
            "-" * width if index < self.labels else "-" * (width - 1) + ":"
            for index, width in enumerate(widths)
        ]
        return "\n".join(self._line(each, widths) for each in (head, rule, *rows))

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        padded = [
            cell.ljust(width) if index < self.labels else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"


@dataclass(frozen=True)
class Tabular:
    """A table of LaTeX: what stands around it, how its columns are aligned, and its lines."""

    packages: str
    caption: str
    label: str
    columns: str
    lines: Sequence[str]
    wide: bool = True


class Table(ABC):
    """A table of a study.

    Attributes:
        name: for files.
        title: at its head.
        notes: what is missing and why, and what else is to be said.
        legend: what its cells say.
    """

    name: str
    title: str
    notes: tuple[str, ...]
    legend: ClassVar[str]

    @property
    @abstractmethod
    def lead(self) -> tuple[str, str]:
        """On what terms it was made: what is emphasised, and what follows."""

    @abstractmethod
    def grids(self) -> Iterator[Grid]:
        """Its parts, under one another."""

    @abstractmethod
    def tabular(self) -> Tabular:
        """All of it for LaTeX."""

    @abstractmethod
    def records(self) -> Iterator[Mapping[str, object]]:
        """Lines of the CSV by their columns: nothing rounded, accuracies in per cent."""

    def text(self, form: str) -> str:
        """The whole table in one of the :data:`FORMATS`."""
        return {"markdown": self.markdown, "latex": self.latex, "csv": self.comma_separated}[form]()

    def markdown(self) -> str:
        """With its terms, its legend and its notes."""
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

    def latex(self) -> str:
        """A whole ``table`` environment; its first line names the packages, notes are comments."""
        made = self.tabular()
        lines = [
            rf"% \usepackage{{{made.packages}}}",
            r"\begin{table}[t]",
            r"    \centering",
            rf"    \caption{{{made.caption}}}",
            rf"    \label{{tab:{made.label}}}",
            *([r"    \resizebox{\textwidth}{!}{"] * made.wide),
            rf"    \begin{{tabular}}{{{made.columns}}}",
            r"        \toprule",
            *(f"        {line}" for line in made.lines),
            r"        \bottomrule",
            r"    \end{tabular}" + "}" * made.wide,
            r"\end{table}",
            *(f"% {one_line(note)}" for note in self.notes),
        ]
        return "\n".join(lines) + "\n"

    def comma_separated(self) -> str:
        """Blank where there is nothing."""
        records = list(self.records())
        lines = [*map(list, records[:1]), *(map(csv_cell, each.values()) for each in records)]
        return "".join(map(csv_line, lines))


def latex_line(cells: Iterable[str]) -> str:
    """Cells of LaTeX as a line of a table."""
    return f"{' & '.join(cells)} \\\\"


def check_format(form: str) -> None:
    """Raise if tables cannot be printed in that form."""
    known = (*FORMATS, NOTHING)
    if form not in known:
        raise InvalidInputError(
            f"there is no format {form!r}.{nearest(form, known)} There are {', '.join(known)}."
        )


def write_tables(tables: Iterable[Table], folder: Path, form: str) -> list[Path]:
    """Write tables in every format, and print them in one; the files written."""
    written = []
    for table in tables:
        for name, ending in FORMATS.items():
            text = table.text(name)
            written.append(folder / f"{table.name}.{ending}")
            write_text(written[-1], text)
            if name == form:
                print(text)
    return written


def decimals(metric: str) -> int:
    """Digits after the point, as in the paper."""
    return 2 if metric.endswith("accuracy") else 4


def with_error(value: Summary | Published | None, digits: int) -> str:
    """Mean ± standard error; the mean alone where there is no error; the published as printed."""
    if value is None:
        return MISSING
    if isinstance(value, Published):
        digits = round(-math.log10(value.unit))
    mean = f"{value.mean:.{digits}f}"
    return mean if value.error is None else f"{mean} ± {value.error:.{digits}f}"


def in_seconds(value: float | None, thousands: str = ",") -> str:
    """A time, to two digits where it is short."""
    if value is None:
        return MISSING
    return f"{value:{thousands}.0f}" if value >= 10 else f"{value:.2g}"

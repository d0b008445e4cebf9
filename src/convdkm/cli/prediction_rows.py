"""Predictions as text, a batch of rows at a time: CSV, JSON, or a table for people."""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.measure import Measurement

from convdkm.cli.output import MISSING, console, plain_table
from convdkm.storage.text import csv_cell, csv_line, name_text

Row = dict[str, Any]
COLUMNS = ("image", "class", "probability", "entropy", "mutual_information")
SHORTEST = 10
"""Columns of a terminal that names of images are given at least."""


class Form(ABC):
    """How rows are written; a row of CSV or JSON is one line, whatever its names hold.

    Args:
        classes: names of the classes.
        files: paths of all images.
    """

    end = ""
    resumable = True

    def __init__(self, classes: Sequence[str], files: Sequence[str]) -> None:
        self.classes, self.files = classes, files

    @abstractmethod
    def start(self) -> str:
        """What comes before the first row."""

    @abstractmethod
    def lines(self, rows: Iterable[Row], *, first: bool) -> str:
        """Rows as text; ``first`` where they begin a file, or go on with one."""

    def image_of(self, line: str) -> str | None:
        """The image of a line that :meth:`lines` wrote, if it is whole, as :meth:`shown`."""
        return None

    def shown(self, file: str) -> str:
        """The name of an image as it is written."""
        return name_text(file)


class CsvForm(Form):
    """Comma-separated values."""

    def start(self) -> str:
        return csv_line(map(csv_cell, [*COLUMNS, *(f"p({name})" for name in self.classes)]))

    def lines(self, rows: Iterable[Row], *, first: bool) -> str:
        return "".join(
            csv_line([*(csv_cell(row[name]) for name in COLUMNS), *row["probabilities"].values()])
            for row in rows
        )

    def image_of(self, line: str) -> str | None:
        cells = next(csv.reader([line]), []) if line.endswith("\n") else []
        return cells[0] if len(cells) == len(COLUMNS) + len(self.classes) else None

    def shown(self, file: str) -> str:
        return str(csv_cell(super().shown(file)))


class JsonForm(Form):
    """One JSON array."""

    end = "\n]\n"

    def start(self) -> str:
        return "[\n"

    def lines(self, rows: Iterable[Row], *, first: bool) -> str:
        text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        return text if first or not text else f",\n{text}"

    def image_of(self, line: str) -> str | None:
        if not line.endswith(",\n"):
            return None
        try:
            return str(json.loads(line[:-2])["image"])
        except (ValueError, TypeError, KeyError):
            return None


class TableForm(Form):
    """A table whose columns are as wide as all names need, or as the terminal allows."""

    resumable = False

    def __init__(self, classes: Sequence[str], files: Sequence[str]) -> None:
        super().__init__(classes, files)
        self._screen = console()
        self._titles = [column.replace("_", " ") for column in COLUMNS]
        longest = max((cell_len(self.shown(file)) for file in files), default=0)
        self._widths = [longest, max(map(cell_len, classes)), *map(len, self._titles[2:])]
        self._widths = [
            max(pair) for pair in zip(self._widths, map(len, self._titles), strict=True)
        ]
        unbounded = self._screen.options.update_width(sum(self._widths) + 100)
        whole = Measurement.get(self._screen, unbounded, self._table([])).maximum
        most = max(SHORTEST, self._widths[0] - max(0, whole - self._screen.width))
        self._widths[0] = min(self._widths[0], most)

    def start(self) -> str:
        return ""

    def lines(self, rows: Iterable[Row], *, first: bool) -> str:
        with self._screen.capture() as captured:
            self._screen.print(self._table(rows, header=first))
        return captured.get()

    def _table(self, rows: Iterable[Row], *, header: bool = True) -> Any:
        table = plain_table(*self._titles, right=tuple(self._titles[2:]))
        table.show_header = header
        for column, width in zip(table.columns, self._widths, strict=True):
            column.width = width
        for row in rows:
            figures = (row["entropy"], row["mutual_information"])
            table.add_row(
                row["image"],
                row["class"],
                f"{row['probability']:.1%}",
                *(MISSING if value is None else f"{value:.3f}" for value in figures),
            )
        return table


FORMS: dict[str, type[Form]] = {"table": TableForm, "csv": CsvForm, "json": JsonForm}

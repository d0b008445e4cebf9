"""Predictions as text, a batch of rows at a time: CSV or JSON."""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from convdkm.storage.text import csv_cell, csv_line, name_text

Row = dict[str, Any]
COLUMNS = ("image", "class", "probability", "entropy", "mutual_information")


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

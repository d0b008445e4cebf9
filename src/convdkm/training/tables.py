"""CSV files that grow while a run is made, and survive its end at any moment."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TextIO

from convdkm.errors import InvalidInputError
from convdkm.storage.files import replacing, require_regular, writing
from convdkm.storage.text import csv_line


class Table:
    """A CSV file that grows row by row, and column by column where it must.

    A new file begins with ``columns``; others follow as they turn up.
    """

    def __init__(self, path: Path, columns: Iterable[str] = ()) -> None:
        self.path, self._known = path, list(columns)
        self._columns: list[str] = []
        self._file: TextIO | None = None

    def rows(self) -> list[dict[str, str]]:
        """What is in the file."""
        return read_table(self.path)[1]

    def load(self, keep: Callable[[dict[str, str]], bool]) -> None:
        """Take over the file of an earlier process, but for the rows not to be kept."""
        columns, rows = read_table(self.path)
        rows = [row for row in rows if keep(row)]
        if not rows:
            self.path.unlink(missing_ok=True)
            return
        found = {name for row in rows for name in row} | set(self._known)
        self._columns = [name for name in columns if name in found]
        self._rewrite(rows)

    def append(self, index: Mapping[str, int | str], values: Mapping[str, float]) -> None:
        """Add a row: what it is about, and its values."""
        row = {name: str(value) for name, value in index.items()}
        row |= {name: repr(float(value)) for name, value in values.items()}
        if any(name not in self._columns for name in row):
            rows = self.rows()
            self._columns = list(dict.fromkeys([*(self._columns or self._known), *row]))
            self._rewrite([*rows, row])
            return
        with writing(self.path):
            if self._file is None:
                self._file = self.path.open("a", encoding="utf-8", newline="")
            self._file.write(self._line(row))
            self._file.flush()

    def sync(self) -> None:
        """Have the operating system put the rows on the disk."""
        if self._file is not None:
            with writing(self.path):
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; a row that comes later opens it again."""
        file, self._file = self._file, None
        if file is not None:
            with writing(self.path):
                file.close()

    def _line(self, row: Mapping[str, str]) -> str:
        return csv_line(row.get(name, "") for name in self._columns)

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        """Replace the file at once, so that at any time it is either the old or the new one."""
        self.close()
        with (
            replacing(self.path) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            file.write(csv_line(self._columns))
            file.writelines(self._line(row) for row in rows)


def read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and rows, without blank cells; an unfinished last line is left out."""
    if not path.exists():
        return [], []
    require_regular(path)
    *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    if not lines:
        return [], []
    columns, *table = csv.reader(lines)
    rows = []
    for line, cells in enumerate(table, 2):
        if len(cells) != len(columns):
            if line == len(lines):
                break
            raise InvalidInputError(
                f"line {line} of {path} has {len(cells)} cells, but there are"
                f" {len(columns)} columns"
            )
        rows.append({name: cell for name, cell in zip(columns, cells, strict=True) if cell})
    return columns, rows

"""Predictions as rows of CSV or JSON, in a file that grows and that a second try goes on with."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from convdkm.errors import ConvDKMError, InvalidInputError
from convdkm.storage.files import locked, move_into_place, require_regular, writing
from convdkm.storage.text import csv_cell, csv_line, name_text

Say = Callable[[str], None]
Row = dict[str, Any]
COLUMNS = ("image", "class", "probability", "entropy", "mutual_information")


class Form(ABC):
    """How rows are written; a row of CSV or JSON is one line, whatever its names hold."""

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


class PartialFile:
    """Rows on their way to a file.

    They are written to a partial file beside it, whose name has a digest of the machine and the
    options and the time when it was begun. A partial file of another machine or other options is
    removed. Rows are kept whose images have the same names in the same order, and were not touched
    since.

    Args:
        path: where the rows are to be in the end.
        form: how they are written.
        origin: the machine and the options.
        gaps: some images may have no row, since they cannot be read.
        tell: is told what is kept, and what it goes on with.
        warn: is told what begins anew.
    """

    def __init__(
        self, path: Path, form: Form, origin: str, *, gaps: bool, tell: Say, warn: Say
    ) -> None:
        require_regular(path)
        self.path, self.form, self._gaps = path, form, gaps
        self._tell, self._warn = tell, warn
        self._key = hashlib.sha256(origin.encode()).hexdigest()[:16]
        self.rows = 0
        """Rows that are whole."""
        self.next = 0
        """Position of the first image that is not among them."""

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The file to append to; it takes its place at the end of the block.

        Errors and Ctrl-C say what is kept.
        """
        lock = self.path.with_name(f".{self.path.name}.lock")
        with locked(lock, f"predictions are being written to {self.path}", "wait for it"):
            part, begun = self._partial_file()
            try:
                with writing(self.path):
                    with part.open("r+b") as file:
                        self._go_on(file, begun)
                        yield file
                        file.write(self.form.end.encode())
                    move_into_place(part, self.path)
            except KeyboardInterrupt:
                if kept := self._kept(part):
                    self._tell(kept)
                raise
            except ConvDKMError as error:
                if not (kept := self._kept(part)):
                    raise
                raise InvalidInputError(f"{error}; {kept}") from error
            finally:
                lock.unlink(missing_ok=True)

    def _partial_file(self) -> tuple[Path, int]:
        """Where the rows are, and since when; those of other commands are removed."""
        pattern = re.compile(re.escape(self.path.name) + r"\.([0-9a-f]{16})-([0-9a-f]{1,20})\.part")
        begun = 0
        for name in sorted(os.listdir(self.path.parent)):
            found = pattern.fullmatch(name)
            if found is not None and found[1] == self._key and not begun:
                begun = int(found[2], 16)
            elif found is not None:
                other = self.path.with_name(name)
                other.unlink()
                self._warn(f"{other} came from another machine or other options; all begins anew")
        begun = begun or time.time_ns()
        part = self.path.with_name(f"{self.path.name}.{self._key}-{begun:x}.part")
        part.touch()
        return part, begun

    def _go_on(self, file: BinaryIO, begun: int) -> None:
        """Find the rows that still hold, and cut off the others."""
        start = self.form.start().encode()
        if file.read(len(start)) != start:
            file.seek(0)
            file.truncate()
            file.write(start)
        end = len(start)
        for line in file:
            name = self.form.image_of(line.decode("utf-8", "replace"))
            if name is None:
                break
            place = self._place(name, begun)
            if place is None:
                self._warn(f"images have changed since, from {name} on; these are predicted anew")
                break
            self.rows, self.next, end = self.rows + 1, place + 1, end + len(line)
        file.seek(end)
        file.truncate()
        if self.rows:
            self._tell(f"goes on after {_count(self.rows)} of {self.path}")

    def _place(self, name: str, begun: int) -> int | None:
        """The position of an image that is next in turn; None if it is not, or was touched."""
        files = self.form.files
        for place in range(self.next, len(files)):
            if _touched(files[place]) > begun:
                break
            if self.form.shown(files[place]) == name:
                return place
            if not self._gaps:
                break
        return None

    def _kept(self, part: Path) -> str:
        """What to say of the rows so far; nothing, and no file, where there are none."""
        if not (self.rows and self.form.resumable):
            part.unlink(missing_ok=True)
            return ""
        return f"kept in {part}: {_count(self.rows)}, after which the same command goes on"


def _touched(file: str) -> int:
    """When a file was last changed or put in its place, in nanoseconds; never if it is gone."""
    try:
        state = os.stat(file)
    except OSError:
        return 0
    return max(state.st_mtime_ns, state.st_ctime_ns)


def _count(rows: int) -> str:
    return f"{rows} prediction{'' if rows == 1 else 's'}"

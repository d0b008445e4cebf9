"""A file of predictions that grows beside its place, and that a second try goes on with."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from convdkm.errors import ConvDKMError, InvalidInputError
from convdkm.storage.files import locked, move_into_place, require_regular, writing
from convdkm.storage.prediction_rows import Form

Say = Callable[[str], None]


class PartialFile:
    """Rows on their way to a file.

    They lie in a file beside it, whose name has a digest of the machine and the options, and the
    time when it was begun. What another machine or other options began is removed. Of what is there
    those rows are kept whose images have the same names in the same order, and were not touched
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
            part, begun = self._own()
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

    def _own(self) -> tuple[Path, int]:
        """Where the rows are, and since when; what does not belong to this command is removed."""
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
        end = 0
        if file.read(len(start)) == start:
            end = len(start)
            for line in file:
                name = self.form.image_of(line.decode("utf-8", "replace"))
                if name is None:
                    break
                place = self._place(name, begun)
                if place is None:
                    self._warn(
                        f"images have changed since, from {name} on; these are predicted anew"
                    )
                    break
                self.rows, self.next, end = self.rows + 1, place + 1, end + len(line)
        file.seek(end)
        file.truncate()
        if not end:
            file.write(start)
        if self.rows:
            self._tell(f"goes on after {_count(self.rows)} of {self.path}")

    def _place(self, name: str, begun: int) -> int | None:
        """The position of an image that is next in turn; None if it is not, or was touched."""
        files = self.form.files
        for place in range(self.next, len(files)):
            if _touched(files[place]) > begun:
                return None
            if self.form.shown(files[place]) == name:
                return place
            if not self._gaps:
                return None
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

"""A file of predictions that grows beside its place, and that a second try goes on with."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from convdkm.cli.output import say, warn
from convdkm.cli.prediction_rows import Form
from convdkm.errors import ConvDKMError, InvalidInputError
from convdkm.experiments.locking import locked
from convdkm.files import move_into_place, require_regular


class PartialFile:
    """Rows on their way to a file.

    They lie in a file beside it, whose name has a digest of all that they come from: the machine,
    the options, and names, sizes and times of the images. So what is there belongs to the same
    command, and any other begins anew.

    Args:
        path: where the rows are to be in the end.
        form: how they are written.
        origin: what they come from, but for the images.
    """

    def __init__(self, path: Path, form: Form, origin: str) -> None:
        require_regular(path)
        self.path, self.form = path, form
        self.part = path.with_name(f"{path.name}.{_digest(origin, form.files)}.part")
        self.rows = 0
        """Rows that are whole."""
        self.next = 0
        """Position of the first image that is not among them."""

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The file to append to; it takes its place at the end of the block.

        An error, or Ctrl-C, is told what is kept.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        busy = f"another process is writing predictions to {self.path}; wait for it"
        for other in self._others():
            warn(
                f"{other} comes from another machine, other options or other images; it is removed,"
                " and all begins anew"
            )
            with locked(other, busy):
                other.unlink()
        with locked(self.part, busy), self.part.open("r+b") as file:
            self._go_on(file)
            try:
                yield file
                file.write(self.form.end.encode())
            except KeyboardInterrupt:
                if kept := self._kept(file):
                    say(kept, stderr=True)
                raise
            except (ConvDKMError, OSError) as error:
                if not (kept := self._kept(file)):
                    raise
                text = error.strerror if isinstance(error, OSError) else None
                raise InvalidInputError(f"{text or error}; {kept}") from error
        move_into_place(self.part, self.path)

    def _go_on(self, file: BinaryIO) -> None:
        """Find the rows that are whole, and cut off what is not."""
        start = self.form.start().encode()
        if file.read(len(start)) == start:
            end = len(start)
            waiting = enumerate(map(self.form.shown, self.form.files))
            for line in file:
                name = self.form.image_of(line.decode("utf-8", "replace"))
                place = next((at for at, each in waiting if each == name), None)
                if place is None:
                    break
                self.rows, self.next, end = self.rows + 1, place + 1, end + len(line)
            file.truncate(end)
            file.seek(end)
        if not self.rows:
            file.truncate(0)
            file.seek(0)
            file.write(start)
        else:
            say(f"goes on after the {self.rows} predictions in {self.part}", stderr=True)

    def _kept(self, file: BinaryIO) -> str:
        """What to say of the rows so far; nothing, and no file, where there are none."""
        with suppress(OSError):  # a full disk: what is not whole is cut off later
            file.close()
        if not self.rows:
            self.part.unlink(missing_ok=True)
            return ""
        plural = "" if self.rows == 1 else "s"
        return (
            f"{self.rows} prediction{plural} are kept in {self.part}, and the same command goes on"
            " after them"
        )

    def _others(self) -> list[Path]:
        """Beginnings of this file that do not belong to this command."""
        mine = re.compile(re.escape(self.path.name) + r"\.[0-9a-f]{16}\.part")
        folder = self.path.parent
        return [
            folder / name
            for name in os.listdir(folder)
            if mine.fullmatch(name) and name != self.part.name
        ]


def _digest(origin: str, files: Sequence[str]) -> str:
    found = hashlib.sha256(origin.encode())
    for file in files:
        found.update(os.fsencode(file))
        try:
            state = os.stat(file)
            found.update(f"\0{state.st_size} {state.st_mtime_ns}\0".encode())
        except OSError:  # it is named when it is read
            found.update(b"\0")
    return found.hexdigest()[:16]

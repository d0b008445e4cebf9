"""Who writes the page of a run: a package above this one, which the root of the program names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from convdkm.data import Dataset
    from convdkm.training.run import Run


class Writer(Protocol):
    """Writes the page of a run; see :meth:`convdkm.Run.report`."""

    def __call__(
        self, run: Run, output: str | Path | None, data: Dataset | None, images: int
    ) -> Path: ...


writer: Writer

"""Who writes the page of a run: a package above this one, which the root of the program names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from convdkm.data import Dataset
    from convdkm.training.run import Run

writer: Callable[[Run, str | Path | None, Dataset | None, int], Path]
"""Writes the page of a run; the arguments are those of :meth:`convdkm.Run.report`."""

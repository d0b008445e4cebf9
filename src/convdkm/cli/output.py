"""Tables and messages for people. The library that draws them is imported with the first."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from convdkm.storage.text import legible
from convdkm.training.metric_names import metric_rows

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

MISSING = "–"
UNBOUNDED = 200
"""Columns where output goes to a file or another program."""


def console(*, stderr: bool = False) -> Console:
    """A console that takes text as it is: names of files may hold brackets and colons."""
    from rich.console import Console

    class LegibleConsole(Console):
        """One on which no text is obeyed: codes that steer a terminal are shown as such."""

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(legible(text), **options)

    made = LegibleConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = UNBOUNDED
    return made


def say(text: str, *, stderr: bool = False) -> None:
    """Print text that may hold names of files, unbroken."""
    print(legible(text), file=sys.stderr if stderr else sys.stdout)


def say_path(path: Path) -> None:
    """Print a path: for another program as it is, byte by byte, and for a person legibly."""
    print(legible(path) if sys.stdout.isatty() else path)


def warn(text: str) -> None:
    """Tell the user, on standard error."""
    console(stderr=True).print(f"Warning: {text}", style="yellow", soft_wrap=True)


def plain_table(
    *columns: str, rows: Iterable[Iterable[str]] = (), right: Collection[str] = ()
) -> Table:
    """A table without vertical lines, whose named columns are aligned to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def metrics_table(metrics: Mapping[str, float]) -> Table:
    """The figures of a run: one row for each kind, one column for each part of the data."""
    parts, rows = metric_rows(metrics, _figure)
    return plain_table("", *parts, rows=rows, right=parts)


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.2%}" if name == "accuracy" else f"{value:.4f}"

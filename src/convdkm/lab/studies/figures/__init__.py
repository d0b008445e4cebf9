"""Figures of a table: its settings side by side, and the learning curves of its runs."""

from __future__ import annotations

from pathlib import Path

from convdkm.lab.studies.figures.curves import Curves, draw_curves
from convdkm.lab.studies.figures.settings import draw_settings
from convdkm.lab.studies.results import Results, TableResult

__all__ = ["draw"]


def draw(
    table: TableResult, results: Results, folder: Path, published: Curves | None
) -> list[Path]:
    """Write the figures of a table as PNG; the files written."""
    written = [draw_settings(table, folder / f"{table.name}.png")]
    if len({block.category.name for block in table.blocks}) == 1:
        written.append(draw_curves(table, results, folder / f"{table.name}-curves.png", published))
    return [path for path in written if path is not None]

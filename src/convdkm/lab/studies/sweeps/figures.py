"""Figures of a sweep: the settings of its tables side by side, and the learning curves."""

from __future__ import annotations

from pathlib import Path

from convdkm.lab.studies.sweeps.curves import Curves, draw_curves
from convdkm.lab.studies.sweeps.results import Results
from convdkm.lab.studies.sweeps.settings import draw_settings


def draw(results: Results, folder: Path, published: Curves | None = None) -> list[Path]:
    """Write the figures of all tables as PNG; the files written."""
    written = []
    for table in results.tables():
        written.append(draw_settings(table, folder / f"{table.name}.png"))
        if len({block.category.name for block in table.blocks}) == 1:
            path = folder / f"{table.name}-curves.png"
            written.append(draw_curves(table, results, path, published))
    return [path for path in written if path is not None]

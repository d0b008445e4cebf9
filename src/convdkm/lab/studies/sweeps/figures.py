"""Figures of a sweep: settings side by side, with error bars, and the learning curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from convdkm.lab.studies.style import OURS, PUBLISHED, add_legend, add_title, figure
from convdkm.lab.studies.sweeps.curves import Curves, draw_curves
from convdkm.lab.studies.sweeps.results import Results
from convdkm.lab.studies.sweeps.specification import METRICS
from convdkm.lab.studies.sweeps.table import Block, Line, TableResult, dataset_title

ORDERED = ("nu", "inducing")
"""Categories whose settings have an order, from strong to weak regularisation or few to many."""
LOOKS: dict[str, dict[str, Any]] = {
    "published": {"color": PUBLISHED, "marker": "s", "ms": 6, "mfc": "white"},
    "ours": {"color": OURS, "marker": "o", "ms": 3.5},
}


def draw(results: Results, folder: Path, published: Curves | None = None) -> list[Path]:
    """Write the figures of all tables as PNG; the files written."""
    written = []
    for table in results.tables():
        written.append(draw_settings(table, folder / f"{table.name}.png"))
        if len({block.category.name for block in table.blocks}) == 1:
            path = folder / f"{table.name}-curves.png"
            written.append(draw_curves(table, results, path, published))
    return [path for path in written if path is not None]


def draw_settings(table: TableResult, path: Path) -> Path | None:
    """A panel for each block and data set; None where there is nothing to show.

    Settings that have an order make a curve, others a list.
    """
    blocks = [block for block in table.blocks if block.metric == "test_accuracy"]
    lines = [line for block in blocks for line in block.lines]
    if not any(cell.ours or cell.published for line in lines for cell in line.cells):
        return None
    curved = len(blocks) == 1 and blocks[0].category.name in ORDERED
    longest = max(len(_named(line)) for line in lines)
    heights = [2.5 if curved else 0.35 + 0.24 * len(block.lines) for block in blocks]
    margin = 0.6 if curved else 0.4 + 0.065 * longest
    width = max(4.2, margin + len(table.datasets) * (3.4 if curved else 2.6))
    with figure(path, heights, len(table.datasets), width) as (made, axes):
        for row, block in enumerate(blocks):
            for column, dataset in enumerate(table.datasets):
                panel = axes[row][column]
                (_along if curved else _listed)(panel, block, column)
                if row == 0:
                    panel.set_title(dataset_title(dataset), fontsize=9)
                if len(blocks) > 1 and column == 0:
                    panel.set_ylabel(block.title.partition(" (")[0].replace(" ", "\n"), fontsize=8)
        made.align_ylabels(axes[:, 0])
        accuracy = METRICS["test_accuracy"]
        if curved:
            axes[0][0].set_ylabel(accuracy)
        for panel in axes[-1]:
            panel.set_xlabel(table.heading if curved else accuracy)
        add_legend(made, axes, 2)
        add_title(made, table.title, table.scale_sentence)
    return path


def _marks(panel: Any, block: Block, column: int, *, listed: bool) -> None:
    """What is published and ours with their errors: side by side, or of a list in its lines."""
    for kind, shift, joined in (("published", 0.13, "--"), ("ours", -0.13, "-")):
        values = [getattr(line.cells[column], kind) for line in block.lines]
        found = [(place, value) for place, value in enumerate(values) if value is not None]
        if not found:
            continue
        means = [value.mean for _, value in found]
        errors = [value.error or 0 for _, value in found]
        look = {"capsize": 2.5, "lw": 1.1, "label": kind, **LOOKS[kind]}
        if listed:
            places = [place + shift for place, _ in found]
            panel.errorbar(means, places, xerr=errors, ls="none", **look)
        else:
            panel.errorbar([place for place, _ in found], means, errors, ls=joined, **look)


def _along(panel: Any, block: Block, column: int) -> None:
    """Accuracy above the settings in their order."""
    _marks(panel, block, column, listed=False)
    labels = [line.row.label.partition(" (")[0].replace(" ", "") for line in block.lines]
    panel.set_xticks(range(len(labels)), labels)
    panel.set_xlim(-0.5, len(labels) - 0.5)
    panel.tick_params(axis="x", labelrotation=35 if max(map(len, labels)) > 4 else 0, labelsize=7)


def _listed(panel: Any, block: Block, column: int) -> None:
    """One line for each setting, ours a little above the published."""
    _marks(panel, block, column, listed=True)
    labels = [_named(line) if column == 0 else "" for line in block.lines]
    panel.set_yticks(range(len(labels)), labels)
    panel.locator_params(axis="x", nbins=5)
    panel.set_ylim(len(labels) - 0.5, -0.5)


def _named(line: Line) -> str:
    return line.row.label if line.row.source is None else f"{line.row.label}, {line.row.source}"

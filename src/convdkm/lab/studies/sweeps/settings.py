"""Settings side by side, with error bars: against ν, against inducing points, or as a list."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convdkm.lab.studies.style import OURS, PUBLISHED, entitle, explain, figure
from convdkm.lab.studies.sweeps.specification import METRICS
from convdkm.lab.studies.sweeps.table import Block, Line, TableResult, dataset_title

OUR_STYLE = {"color": OURS, "marker": "o", "ms": 3.5, "label": "ours"}
PUBLISHED_STYLE = {
    "color": PUBLISHED,
    "marker": "s",
    "ms": 6,
    "mfc": "white",
    "label": "published",
}


def draw_settings(table: TableResult, path: Path) -> Path | None:
    """A panel for each block and data set; None where there is nothing to show."""
    blocks = [block for block in table.blocks if block.metric == "test_accuracy"]
    if not any(_points(block.lines, column) for block in blocks for column in _columns(table)):
        return None
    curved = len(blocks) == 1 and blocks[0].category.name in ("nu", "inducing")
    longest = max(len(_named(line)) for block in blocks for line in block.lines)
    heights = [2.5 if curved else 0.35 + 0.24 * len(block.lines) for block in blocks]
    margin = 0.6 if curved else 0.4 + 0.065 * longest
    width = max(4.2, margin + len(table.datasets) * (3.4 if curved else 2.6))
    with figure(path, heights, len(table.datasets), width) as (made, axes):
        for row, block in enumerate(blocks):
            for column, dataset in enumerate(table.datasets):
                panel = axes[row][column]
                (_along if curved else _listed)(panel, block, column, table.heading)
                if row == 0:
                    panel.set_title(dataset_title(dataset), fontsize=9)
                if len(blocks) > 1 and column == 0:
                    panel.set_ylabel(block.title.partition(" (")[0].replace(" ", "\n"), fontsize=8)
        made.align_ylabels(axes[:, 0])
        _label_values(axes, curved)
        explain(made, axes, 2)
        entitle(made, table.title, table.scale_sentence)
    return path


def _columns(table: TableResult) -> range:
    return range(len(table.datasets))


def _points(lines: Sequence[Line], column: int) -> bool:
    return any(line.cells[column].ours or line.cells[column].published for line in lines)


def _label_values(axes: Any, curved: bool) -> None:
    title = METRICS["test_accuracy"]
    if curved:
        axes[0][0].set_ylabel(title)
        return
    for panel in axes[-1]:
        panel.set_xlabel(title)


def _marks(panel: Any, lines: Sequence[Line], column: int, *, listed: bool) -> None:
    """What is published and ours with their errors: side by side, or of a list in its lines."""
    kinds = (("published", PUBLISHED_STYLE, 0.13, "--"), ("ours", OUR_STYLE, -0.13, "-"))
    for kind, style, shift, joined in kinds:
        values = [getattr(line.cells[column], kind) for line in lines]
        found = [(place, value) for place, value in enumerate(values) if value is not None]
        if not found:
            continue
        means = [value.mean for _, value in found]
        errors = [value.error or 0 for _, value in found]
        look = {"capsize": 2.5, "lw": 1.1, **style}
        if listed:
            places = [place + shift for place, _ in found]
            panel.errorbar(means, places, xerr=errors, ls="none", **look)
        else:
            panel.errorbar([place for place, _ in found], means, errors, ls=joined, **look)


def _along(panel: Any, block: Block, column: int, heading: str) -> None:
    """Accuracy above the settings in order, from strong to weak regularisation or few to many."""
    lines = block.lines
    _marks(panel, lines, column, listed=False)
    labels = [line.row.label.partition(" (")[0].replace(" ", "") for line in lines]
    panel.set_xticks(range(len(lines)), labels)
    panel.set_xlim(-0.5, len(lines) - 0.5)
    panel.tick_params(axis="x", labelrotation=35 if max(map(len, labels)) > 4 else 0, labelsize=7)
    panel.set_xlabel(heading)


def _listed(panel: Any, block: Block, column: int, _: str) -> None:
    """One line for each setting, ours a little above the published."""
    lines = block.lines
    _marks(panel, lines, column, listed=True)
    labels = [_named(line) for line in lines] if column == 0 else [""] * len(lines)
    panel.set_yticks(range(len(lines)), labels)
    panel.locator_params(axis="x", nbins=5)
    panel.set_ylim(len(lines) - 0.5, -0.5)


def _named(line: Line) -> str:
    return line.row.label if line.row.source is None else f"{line.row.label}, {line.row.source}"

"""Figures of a sweep: settings side by side, with error bars, and learning curves.

Learning curves are drawn over the published ones where the user has them.
"""

from __future__ import annotations

import csv
from itertools import cycle
from pathlib import Path
from typing import Any

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.statistics import Summary
from convdkm.lab.studies.style import OURS, PUBLISHED, add_legend, add_title, figure
from convdkm.lab.studies.sweeps.results import Block, Results, TableResult, dataset_title
from convdkm.lab.studies.sweeps.specification import METRICS, Category, Row
from convdkm.storage.files import require_regular

ORDERED = ("nu", "inducing")
"""Categories whose settings have an order, from strong to weak regularisation or few to many."""
LOOKS: dict[str, dict[str, Any]] = {
    "published": {"color": PUBLISHED, "marker": "s", "ms": 6, "mfc": "white"},
    "ours": {"color": OURS, "marker": "o", "ms": 3.5},
}
COLUMNS = ("dataset", "epochs", "inducing", "seed", "epoch", "test_acc")
LINES = tuple(
    zip(
        ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1))),
        ("0.0", "0.25", "0.4", "0.0", "0.25", "0.4"),
        strict=True,
    )
)
"""Styles and greys of learning curves."""

Points = dict[int, list[float]]
"""Test accuracies of all seeds, in per cent, by epoch."""
Curves = dict[tuple[str, str], Points]
"""Published curves by data set and inducing points, such as ``16/32/64``."""


def draw(results: Results, folder: Path, published: Curves | None = None) -> list[Path]:
    """Write the figures of all tables as PNG; the files written."""
    written = []
    for table in results.tables():
        written.append(draw_settings(table, folder / f"{table.name}.png"))
        if len({block.category.name for block in table.blocks}) == 1:
            path = folder / f"{table.name}-curves.png"
            written.append(draw_curves(table, results, path, published or {}))
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
    longest = max(len(_named(line.row)) for line in lines)
    heights = [2.5 if curved else 0.35 + 0.24 * len(block.lines) for block in blocks]
    margin = 0.6 if curved else 0.4 + 0.065 * longest
    width = max(4.2, margin + len(table.datasets) * (3.4 if curved else 2.6))
    with figure(path, heights, len(table.datasets), width) as (made, axes):
        for row, block in enumerate(blocks):
            for column, dataset in enumerate(table.datasets):
                panel = axes[row][column]
                _marks(panel, block, column, curved=curved)
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


def _marks(panel: Any, block: Block, column: int, *, curved: bool) -> None:
    """Published and ours with their errors: above the settings, or in a line for each setting."""
    for kind, shift, joined in (("published", 0.13, "--"), ("ours", -0.13, "-")):
        values = [getattr(line.cells[column], kind) for line in block.lines]
        found = {place: value for place, value in enumerate(values) if value is not None}
        if not found:
            continue
        means = [value.mean for value in found.values()]
        errors = [value.error or 0 for value in found.values()]
        look = {"capsize": 2.5, "lw": 1.1, "label": kind, **LOOKS[kind]}
        if curved:
            panel.errorbar(list(found), means, errors, ls=joined, **look)
        else:
            places = [place + shift for place in found]
            panel.errorbar(means, places, xerr=errors, ls="none", **look)
    rows = [line.row for line in block.lines]
    ends = (-0.5, len(rows) - 0.5)
    if curved:
        labels = [row.label.partition(" (")[0].replace(" ", "") for row in rows]
        rotation = 35 if max(map(len, labels)) > 4 else 0
        panel.set_xticks(range(len(rows)), labels)
        panel.set_xlim(*ends)
        panel.tick_params(axis="x", labelrotation=rotation, labelsize=7)
    else:
        panel.set_yticks(range(len(rows)), [_named(row) if column == 0 else "" for row in rows])
        panel.locator_params(axis="x", nbins=5)
        panel.set_ylim(*reversed(ends))


def _named(row: Row) -> str:
    return row.label if row.source is None else f"{row.label}, {row.source}"


def draw_curves(table: TableResult, results: Results, path: Path, published: Curves) -> Path | None:
    """A panel for each data set; None where no run has two evaluations."""
    part = table.blocks[0].category
    ours = {
        (row.name, dataset): our_points(results, part, row, dataset)
        for row in part.runnable_rows
        for dataset in table.datasets
    }
    if not any(len(points) > 1 for points in ours.values()):
        return None
    columns = len(table.datasets)
    with figure(path, [2.6], columns, max(4.2, 0.6 + 3.4 * columns)) as (made, axes):
        for panel, dataset in zip(axes[0], table.datasets, strict=True):
            for row, (style, grey) in zip(part.runnable_rows, cycle(LINES), strict=False):
                points = ours[row.name, dataset]
                if not points:
                    continue
                _band(panel, points, row.label, color=grey, ls=style, lw=1.2)
                inducing = results.runs(part, row, dataset)[0].config.model.inducing
                theirs = published.get((dataset, "/".join(map(str, inducing))), {})
                last = max(*points, 2)
                shown = {epoch: values for epoch, values in theirs.items() if epoch <= last}
                if shown and part.base.name == "benchmark":
                    look = {"color": PUBLISHED, "ls": style, "lw": 2.2, "alpha": 0.6, "zorder": 1}
                    _band(panel, shown, "published (broad, dashed alike)", **look)
            panel.set_title(dataset_title(dataset), fontsize=9)
            panel.set_xlabel("Epoch")
        axes[0][0].set_ylabel("Test accuracy (%)")
        add_legend(made, axes, 2 * columns)
        add_title(made, f"{table.title}: learning curves", table.scale_sentence)
    return path


def _band(panel: Any, points: Points, label: str, **style: Any) -> None:
    """The mean over seeds, with a band of one standard error."""
    epochs = sorted(points)
    summaries = [summary for epoch in epochs if (summary := Summary.of(points[epoch]))]
    single = {"marker": "o", "ms": 3} if len(epochs) == 1 else {}
    panel.plot(epochs, [each.mean for each in summaries], label=label, **style, **single)
    low = [each.mean - (each.error or 0.0) for each in summaries]
    high = [each.mean + (each.error or 0.0) for each in summaries]
    panel.fill_between(epochs, low, high, color=style["color"], alpha=0.15, lw=0)


def our_points(results: Results, part: Category, row: Row, dataset: str) -> Points:
    """Test accuracies of finished runs, at each epoch that was evaluated."""
    from convdkm.training.sinks import read_csv

    points: Points = {}
    for run in results.runs(part, row, dataset):
        path = results.folder.of(run) / "epochs.csv"
        if results.status(run).state != "finished" or not path.is_file():
            continue
        for record in read_csv(path):
            if "test_accuracy" in record:
                points.setdefault(int(record["epoch"]), []).append(100 * record["test_accuracy"])
    return points


def read_published(path: Path) -> Curves:
    """Published curves from a CSV; of runs of several lengths, the longest."""
    found: dict[tuple[str, str], dict[int, Points]] = {}
    require_regular(path)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise InvalidInputError(
                    f"{path} lacks the columns {', '.join(missing)}; it needs {', '.join(COLUMNS)}"
                )
            for row in reader:
                runs = found.setdefault((row["dataset"], row["inducing"]), {})
                points = runs.setdefault(int(row["epochs"]), {})
                points.setdefault(int(row["epoch"]) + 1, []).append(100 * float(row["test_acc"]))
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error.strerror or error}") from None
    except InvalidInputError:
        raise
    except (ValueError, TypeError, csv.Error) as error:
        raise InvalidInputError(f"{path}: line {reader.line_num}: {error}") from None
    return {key: runs[max(runs)] for key, runs in found.items()}

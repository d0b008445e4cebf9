"""Learning curves: test accuracy after every epoch, over the published where the user has them."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.statistics import Summary
from convdkm.lab.studies.style import PUBLISHED, add_legend, add_title, figure
from convdkm.lab.studies.sweeps.planning import PlannedRun
from convdkm.lab.studies.sweeps.results import Results
from convdkm.lab.studies.sweeps.table import TableResult, dataset_title
from convdkm.storage.files import require_regular

COLUMNS = ("dataset", "epochs", "inducing", "seed", "epoch", "test_acc")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
GREYS = ("0.0", "0.25", "0.4", "0.0", "0.25", "0.4")

Points = dict[int, list[float]]
"""Test accuracies of all seeds, in per cent, by epoch."""
Curves = dict[tuple[str, str], Points]
"""Published curves by data set and inducing points, such as ``16/32/64``."""


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
    except (ValueError, TypeError, csv.Error) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"{path}: line {reader.line_num}: {error}") from None
    return {key: runs[max(runs)] for key, runs in found.items()}


def our_points(results: Results, runs: Iterable[PlannedRun]) -> Points:
    """Test accuracies of finished runs, at each epoch that was evaluated."""
    from convdkm.training.sinks import read_csv

    points: Points = {}
    for run in runs:
        path = results.folder.of(run) / "epochs.csv"
        if results.status(run).state != "finished" or not path.is_file():
            continue
        for record in read_csv(path):
            if "test_accuracy" in record:
                points.setdefault(int(record["epoch"]), []).append(100 * record["test_accuracy"])
    return points


def draw_curves(
    table: TableResult, results: Results, path: Path, published: Curves | None
) -> Path | None:
    """A panel for each data set; None where no run has two evaluations."""
    part = table.blocks[0].category
    ours = {
        (row.name, dataset): our_points(results, results.runs(part, row, dataset))
        for row in part.runnable_rows
        for dataset in table.datasets
    }
    if not any(len(points) > 1 for points in ours.values()):
        return None
    columns = len(table.datasets)
    with figure(path, [2.6], columns, max(4.2, 0.6 + 3.4 * columns)) as (made, axes):
        for panel, dataset in zip(axes[0], table.datasets, strict=True):
            looks = cycle(zip(STYLES, GREYS, strict=True))
            for row in part.runnable_rows:
                points = ours[row.name, dataset]
                line, grey = next(looks)
                if points:
                    _band(panel, points, row.label, color=grey, ls=line, lw=1.2)
                if points and published is not None and part.base_name == "benchmark":
                    inducing = results.runs(part, row, dataset)[0].config.model.inducing
                    theirs = published.get((dataset, "/".join(map(str, inducing))), {})
                    _published(panel, theirs, line, max(points))
            panel.set_title(dataset_title(dataset), fontsize=9)
            panel.set_xlabel("Epoch")
        axes[0][0].set_ylabel("Test accuracy (%)")
        add_legend(made, axes, 2 * columns)
        add_title(made, f"{table.title}: learning curves", table.scale_sentence)
    return path


def _published(panel: Any, points: Points, line: Any, last: int) -> None:
    """Beneath ours and dashed like it, as far as ours goes."""
    shown = {epoch: values for epoch, values in points.items() if epoch <= max(last, 2)}
    if shown:
        look = {"color": PUBLISHED, "ls": line, "lw": 2.2, "alpha": 0.6, "zorder": 1}
        _band(panel, shown, "published (broad, dashed alike)", **look)


def _band(panel: Any, points: Points, label: str, **style: Any) -> None:
    """The mean over seeds, with a band of one standard error."""
    epochs = sorted(points)
    summaries = [summary for epoch in epochs if (summary := Summary.of(points[epoch]))]
    means = [each.mean for each in summaries]
    errors = [each.error or 0.0 for each in summaries]
    single = {"marker": "o", "ms": 3} if len(epochs) == 1 else {}
    panel.plot(epochs, means, label=label, **style, **single)
    low = [mean - error for mean, error in zip(means, errors, strict=True)]
    high = [mean + error for mean, error in zip(means, errors, strict=True)]
    panel.fill_between(epochs, low, high, color=style["color"], alpha=0.15, lw=0)

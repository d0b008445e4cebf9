"""A table as CSV: a line for each setting, data set and metric, nothing rounded."""

from __future__ import annotations

import csv
import io

from convdkm.lab.studies.results import TableResult
from convdkm.storage.text import csv_cell

COLUMNS = (
    "table",
    "category",
    "row",
    "setting",
    "dataset",
    "metric",
    "mean",
    "standard_error",
    "seeds",
    "seeds_planned",
    "seeds_failed",
    "bold",
    "published_mean",
    "published_standard_error",
    "published_bold",
    "difference",
    "seconds_per_epoch",
    "published_seconds_per_epoch",
    "scale",
)


def comma_separated(table: TableResult) -> str:
    """The whole table; accuracies in per cent, blank where there is nothing."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for block in table.blocks:
        for line in block.lines:
            for dataset, cell in zip(table.datasets, line.cells, strict=True):
                ours, published = cell.ours, cell.published
                values: dict[str, object] = {
                    "table": table.name,
                    "category": block.category.name,
                    "row": line.row.name,
                    "setting": line.row.label,
                    "dataset": dataset,
                    "metric": block.metric,
                    "mean": None if ours is None else ours.mean,
                    "standard_error": None if ours is None else ours.error,
                    "seeds": 0 if ours is None else ours.count,
                    "seeds_planned": cell.planned,
                    "seeds_failed": cell.failed,
                    "bold": int(cell.bold),
                    "published_mean": None if published is None else published.mean,
                    "published_standard_error": None if published is None else published.error,
                    "published_bold": None if published is None else int(published.bold),
                    "difference": cell.difference,
                    "seconds_per_epoch": line.seconds,
                    "published_seconds_per_epoch": line.published_seconds,
                    "scale": "; ".join(table.scale) or "as in the paper",
                }
                writer.writerow({name: csv_cell(value) for name, value in values.items()})
    return text.getvalue()

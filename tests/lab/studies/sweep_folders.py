"""Folders of sweeps whose figures are made up."""

import json

from convdkm.lab.studies.sweeps.planning import Record, Scale, Selection, SweepFolder, planned_cell
from convdkm.lab.studies.sweeps.specification import categories_of, chosen_rows

SMALL = Scale(preset="quick", epochs=2)


def planned(folder, table, datasets=("cifar10",), seeds=4, scale=SMALL, *, rows=None):
    """A sweep that is planned, and its runs by row and data set."""
    chosen = {
        name: tuple(row.name for row in group)
        for name, group in chosen_rows(table, rows).items()
        if group
    }
    place = SweepFolder(folder)
    selection = Selection(datasets=datasets, rows=chosen, seeds=seeds)
    place.add(Record(scale=scale, tables={table: selection}))
    return place, {
        (row.name, dataset): planned_cell(part, row, dataset, seeds, scale)
        for part in categories_of(table)
        for row in part.runnable_rows
        if row.name in chosen.get(part.name, ())
        for dataset in datasets
    }


def finish(place, run, accuracy, **more):
    """Put a finished run in its place; its other figures follow from its accuracy."""
    folder = place.of(run)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(run.config.to_yaml())
    metrics = {
        "test_accuracy": accuracy,
        "test_log_likelihood": accuracy - 1,
        "train_accuracy": accuracy,
        "train_log_likelihood": accuracy - 1,
        "seconds": 20.0,
        "epochs": run.config.training.epochs,
    }
    (folder / "metrics.json").write_text(json.dumps(metrics | more))
    records = [f"{epoch},{10 * epoch},{accuracy * epoch / 2}" for epoch in (1, 2)]
    lines = ["epoch,step,test_accuracy", *records]
    (folder / "epochs.csv").write_text("\n".join(lines) + "\n")

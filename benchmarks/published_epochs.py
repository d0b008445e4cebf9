"""The epochs of a run beside the same epochs of the published runs, seed by seed.

The run is one of the preset ``published``; the curves are those of the paper's benchmark, as a CSV
with the columns dataset, epochs, inducing, seed, epoch, objective, train_acc, test_acc, test_ll.
For each epoch and figure it prints ours, the lowest and the highest of the published seeds, and
whether ours lies between them.

    convdkm train cifar10 --preset published --epochs 200 -o runs/published   # stop it after 3
    python benchmarks/published_epochs.py runs/published --epochs 3
"""

import argparse
import csv
from pathlib import Path

from convdkm.config import RunConfig
from convdkm.training.sinks import read_csv

FIGURES = {
    "objective": "objective",
    "train_accuracy": "train_acc",
    "test_accuracy": "test_acc",
    "test_log_likelihood": "test_ll",
}


def published(curves: Path, dataset: str, inducing: str) -> dict[int, list[dict[str, str]]]:
    """The rows of each epoch (from 1), one for each seed."""
    rows: dict[tuple[int, str], dict[str, str]] = {}
    with curves.open() as file:
        for row in csv.DictReader(file):
            if (row["dataset"], row["inducing"]) == (dataset, inducing):
                rows[int(row["epoch"]) + 1, row["seed"]] = row
    by_epoch: dict[int, list[dict[str, str]]] = {}
    for (epoch, _), row in rows.items():
        by_epoch.setdefault(epoch, []).append(row)
    return by_epoch


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(__file__).parents[2] / "shared" / "published" / "benchmark_curves.csv"
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--curves", type=Path, default=default, help="CSV of the published runs")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    config = RunConfig.from_file(arguments.run / "config.yaml")
    inducing = "/".join(map(str, config.model.inducing))
    theirs = published(arguments.curves, config.data.dataset, inducing)
    if not theirs:
        parser.error(f"{arguments.curves} has no runs of {config.data.dataset} at {inducing}")
    print(f"{config.data.dataset}, {inducing}, seed {config.training.seed}")
    print(f"{'epoch':>5} {'figure':<20} {'ours':>9} {'published seeds':>21}")
    for row in read_csv(arguments.run / "epochs.csv")[: arguments.epochs]:
        epoch = int(row["epoch"])
        for name, column in FIGURES.items():
            values = [float(each[column]) for each in theirs[epoch]]
            low, high = min(values), max(values)
            verdict = "within" if low <= row[name] <= high else "outside"
            print(f"{epoch:>5} {name:<20} {row[name]:9.4f} {low:9.4f} … {high:9.4f}  {verdict}")


if __name__ == "__main__":
    main()

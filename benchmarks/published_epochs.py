"""The epochs of runs beside the same epochs of the published runs, seed by seed.

The runs are of the preset ``published``, each with a seed of its own; the curves are those of the
paper's benchmark, as a CSV with the columns dataset, epochs, inducing, seed, epoch, objective,
train_acc, test_acc, test_ll. For each epoch and figure it prints the lowest, the mean and the
highest of ours and of the published seeds, whether the mean of ours lies between the lowest and the
highest of theirs, and (from two runs on) how probable a difference of the means like this one or
larger is where there is none: Welch's t-test, two-sided.

So many figures of the same runs are not independent, and some are bound to be off. So it also tries
every other way to split all runs, ours and theirs, into as many "ours" and "published": if the runs
are alike, ours is one split among equals. Printed are the share of splits with as many figures
outside or more, and with a largest |t| as large or larger.

    convdkm train cifar10 --preset published --seed 1 -o runs/published-1   # stop it after 3 epochs
    python benchmarks/published_epochs.py runs/published-* --epochs 3
"""

import argparse
import csv
from itertools import combinations
from math import comb
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ttest_ind

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
    for (epoch, _), row in sorted(rows.items()):
        by_epoch.setdefault(epoch, []).append(row)
    return by_epoch


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(__file__).parents[2] / "shared" / "published" / "benchmark_curves.csv"
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    parser.add_argument("--curves", type=Path, default=default, help="CSV of the published runs")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    configs = [RunConfig.from_file(run / "config.yaml") for run in arguments.runs]
    kinds = {(each.data.dataset, "/".join(map(str, each.model.inducing))) for each in configs}
    if len(kinds) > 1:
        parser.error(f"the runs are of different kinds: {', '.join(map(' '.join, sorted(kinds)))}")
    dataset, inducing = kinds.pop()
    theirs = published(arguments.curves, dataset, inducing)
    if not theirs:
        parser.error(f"{arguments.curves} has no runs of {dataset} at {inducing}")
    ours = [read_csv(run / "epochs.csv") for run in arguments.runs]
    done = min(map(len, ours))
    if done < arguments.epochs:
        parser.error(f"a run has only {done} epochs: give --epochs {done}, or let it go on")

    print(f"{dataset}, {inducing}, seeds {', '.join(str(each.training.seed) for each in configs)}")
    columns = "low      mean      high"
    print(f"{'epoch':>5} {'figure':<20} {'ours: ' + columns:>33} {'published: ' + columns:>38}")
    pooled: list[list[float]] = []
    for epoch in range(1, arguments.epochs + 1):
        for name, column in FIGURES.items():
            own = [float(rows[epoch - 1][name]) for rows in ours]
            other = [float(each[column]) for each in theirs[epoch]]
            pooled.append(own + other)
            verdict = "within" if min(other) <= mean(own) <= max(other) else "outside"
            if len(own) > 1:
                verdict += f", p = {ttest_ind(own, other, equal_var=False).pvalue:.2f}"
            print(f"{epoch:>5} {name:<20} {_three(own)}       {_three(other)}  {verdict}")
    if len(ours) > 1:
        tell_splits(np.array(pooled), len(ours))


def tell_splits(figures: NDArray[np.float64], count: int) -> None:
    """Print how ours, the first ``count`` columns, compares with every other split of the runs."""
    runs = figures.shape[1]
    outside, largest = [], []
    for chosen in combinations(range(runs), count):  # the first of them is ours
        some = np.isin(np.arange(runs), chosen)
        own, other = figures[:, some], figures[:, ~some]
        means = own.mean(1)
        outside.append(int(((means < other.min(1)) | (means > other.max(1))).sum()))
        largest.append(abs(ttest_ind(own, other, axis=1, equal_var=False).statistic).max())
    many = np.mean(np.array(outside) >= outside[0])
    far = np.mean(np.array(largest) >= largest[0] * (1 - 1e-9))
    print(
        f"\n{outside[0]} of {len(figures)} means are outside. Of all {comb(runs, count)} splits of"
        f" these {runs} runs into {count} and {runs - count}, {many:.0%} have as many outside or"
        f" more ({np.mean(outside):.1f} on average), and {far:.0%} a largest |t| as large as"
        f" {largest[0]:.2f} or larger."
    )


def _three(values: list[float]) -> str:
    return " ".join(f"{value:9.4f}" for value in (min(values), mean(values), max(values)))


if __name__ == "__main__":
    main()

"""Learning curves of runs over the published ones: against epochs, and against minutes of training.

Runs with the same label are seeds of one setting; a curve is their mean, a band from the lowest to
the highest. The published curves are drawn against epochs alone, since their seconds are those of
another machine: for minutes give a run of the preset ``published`` that was made here.

    convdkm train cifar10 --preset fast --seed 1 -o runs/fast-1
    python benchmarks/learning_curves.py fast=runs/fast-0 fast=runs/fast-1 \\
        "published, here=runs/published-0" -o docs/results/learning.png
"""

import argparse
import csv
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import Any

from convdkm.config import RunConfig
from convdkm.lab.studies.style import PUBLISHED, add_legend, figure
from convdkm.training.sinks import read_csv

FIGURES = {
    "test_accuracy": ("test_acc", "Test accuracy (%)", 100.0),
    "test_log_likelihood": ("test_ll", "Test log-likelihood", 1.0),
}
LOOKS = (("black", "-"), ("0.3", "--"), ("0.0", ":"), ("0.3", "-."), ("0.0", (0, (5, 1, 1, 1))))


def published(path: Path, dataset: str, inducing: str) -> list[list[dict[str, float]]]:
    """The epochs of every published seed, as ours are written; of the longest runs."""
    runs: dict[int, dict[str, list[dict[str, float]]]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            if (row["dataset"], row["inducing"]) == (dataset, inducing):
                values = {ours: float(row[theirs]) for ours, (theirs, _, _) in FIGURES.items()}
                seeds = runs.setdefault(int(row["epochs"]), {})
                seeds.setdefault(row["seed"], []).append({**values, "epoch": int(row["epoch"]) + 1})
    return list(runs[max(runs)].values()) if runs else []


def draw(
    panel: Any, seeds: list[list[dict[str, float]]], along: str, name: str, **look: Any
) -> None:
    """The mean of some seeds and their range, as far as all of them go."""
    factor, scale = FIGURES[name][2], 60.0 if along == "seconds" else 1.0
    rows = list(zip(*([row for row in seed if name in row] for seed in seeds), strict=False))
    places = [mean(each[along] for each in row) / scale for row in rows]
    values = [[factor * each[name] for each in row] for row in rows]
    panel.plot(places, [mean(each) for each in values], **look)
    low, high = [min(each) for each in values], [max(each) for each in values]
    panel.fill_between(places, low, high, color=look["color"], alpha=0.15, lw=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(__file__).parents[2] / "shared" / "published" / "benchmark_curves.csv"
    parser.add_argument("runs", nargs="+", metavar="LABEL=RUN", help="folders of runs")
    parser.add_argument("--curves", type=Path, default=default, help="CSV of the published runs")
    parser.add_argument("--epochs", type=int, default=20, help="how far the published are drawn")
    parser.add_argument("-o", "--output", type=Path, default=Path("learning.png"))
    arguments = parser.parse_args()
    settings: dict[str, list[list[dict[str, float]]]] = {}
    for text in arguments.runs:
        label, _, folder = text.rpartition("=")
        if not label:
            parser.error(f"{text!r} reads not like LABEL=RUN")
        settings.setdefault(label, []).append(read_csv(Path(folder) / "epochs.csv"))
    config = RunConfig.from_file(Path(arguments.runs[0].rpartition("=")[2]) / "config.yaml")
    theirs = published(
        arguments.curves, config.data.dataset, "/".join(map(str, config.model.inducing))
    )
    theirs = [[row for row in seed if row["epoch"] <= arguments.epochs] for seed in theirs]
    with figure(arguments.output, [2.6, 2.6], 2, 7.6) as (made, axes):
        for panels, (name, (_, label, _)) in zip(axes, FIGURES.items(), strict=True):
            for panel, along in zip(panels, ("epoch", "seconds"), strict=True):
                if theirs and along == "epoch":
                    look = {"color": PUBLISHED, "lw": 2.2, "label": "published (4 seeds)"}
                    draw(panel, theirs, along, name, **look)
                looks = cycle(LOOKS)
                for kind, seeds in settings.items():
                    colour, line = next(looks)
                    draw(panel, seeds, along, name, color=colour, ls=line, lw=1.2, label=kind)
            panels[0].set_ylabel(label)
            panels[0].xaxis.get_major_locator().set_params(integer=True)
        axes[1][0].set_xlabel("Epochs")
        axes[1][1].set_xlabel("Minutes of training")
        add_legend(made, axes, 3)
    print(arguments.output)


if __name__ == "__main__":
    main()

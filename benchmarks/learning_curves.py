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
from pathlib import Path

from convdkm.config import RunConfig
from convdkm.errors import InvalidInputError
from convdkm.lab.studies.curves import FIGURES, Curve, draw, draw_all, labelled
from convdkm.lab.studies.style import PUBLISHED, add_legend, figure
from convdkm.training.sinks import read_csv

THEIRS = {"test_accuracy": "test_acc", "test_log_likelihood": "test_ll"}
"""Names of the figures in the published curves."""


def published(path: Path, dataset: str, inducing: str) -> list[Curve]:
    """The epochs of every published seed, as ours are written; of the longest runs."""
    runs: dict[int, dict[str, Curve]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            if (row["dataset"], row["inducing"]) == (dataset, inducing):
                values = {ours: float(row[theirs]) for ours, theirs in THEIRS.items()}
                seeds = runs.setdefault(int(row["epochs"]), {})
                seeds.setdefault(row["seed"], []).append({**values, "epoch": int(row["epoch"]) + 1})
    return list(runs[max(runs)].values()) if runs else []


def of_run(folder: Path) -> Curve:
    """The epochs of a run, with minutes of training."""
    rows = read_csv(folder / "epochs.csv")
    return [{**row, "minutes": row["seconds"] / 60} for row in rows]


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
    try:
        folders = labelled(arguments.runs)
    except InvalidInputError as error:
        parser.error(str(error))
    settings = {label: [of_run(each) for each in some] for label, some in folders.items()}
    first = next(iter(folders.values()))[0]
    config = RunConfig.from_file(first / "config.yaml")
    theirs = published(
        arguments.curves, config.data.dataset, "/".join(map(str, config.model.inducing))
    )
    theirs = [[row for row in seed if row["epoch"] <= arguments.epochs] for seed in theirs]
    with figure(arguments.output, [2.6, 2.6], 2, 7.6) as (made, axes):
        for panels, (name, (label, _)) in zip(axes, FIGURES.items(), strict=True):
            if theirs:
                look = {"color": PUBLISHED, "lw": 2.2, "label": "published (4 seeds)"}
                draw(panels[0], theirs, "epoch", name, **look)
            for panel, along in zip(panels, ("epoch", "minutes"), strict=True):
                draw_all(panel, settings, along, name)
            panels[0].set_ylabel(label)
            panels[0].xaxis.get_major_locator().set_params(integer=True)
        axes[1][0].set_xlabel("Epochs")
        axes[1][1].set_xlabel("Minutes of training")
        add_legend(made, axes, 3)
    print(arguments.output)


if __name__ == "__main__":
    main()

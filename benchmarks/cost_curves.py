"""What runs reach for what they cost: test figures against PFLOP and against hours of processors.

Runs with the same label are seeds of one setting; a curve is their mean, a band from the lowest to
the highest. In the place of a run, the folder of a comparison gives the trials in it, each as a
point: a CNN with the recipe of a preset, say. An epoch has cost the FLOPs of the run times the
share of its steps that are done, and its CPU time times the share of its seconds. Beside runs on
CIFAR-10 are results of others. Those without a figure of FLOPs are in the table alone, and so are
hours of a GPU, which are not those of a CPU.

    convdkm train cifar10 --preset fast --seed 1 -o runs/fast-1
    convdkm compare cifar10 --methods cnn --train-size all --preset accurate --budget inf -o cnn
    python benchmarks/cost_curves.py fast=runs/fast-0 fast=runs/fast-1 CNN=cnn -o cost.png
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import mean

from convdkm.config import RunConfig
from convdkm.errors import InvalidInputError
from convdkm.lab.studies.comparison.folder import ComparisonFolder
from convdkm.lab.studies.curves import FIGURES, Curve, draw_all, labelled
from convdkm.lab.studies.rendering import MISSING, Grid, rounded
from convdkm.lab.studies.style import PUBLISHED, add_legend, figure, plain_ticks
from convdkm.training.sinks import read_csv

COSTS = {"pflop": "PFLOP", "cpu_hours": "Hours of processors"}


@dataclass(frozen=True)
class Reference:
    """A published result on CIFAR-10: per cent, nats, PFLOP and hours of a processor or GPU."""

    name: str
    test_accuracy: float
    test_log_likelihood: float | None
    pflop: float | None
    hours: float
    device: str
    source: str


REFERENCES = (
    Reference(
        *("convolutional DKM, 512/1024/2048", 92.7, -0.65, None, 77.0, "A100"),
        "Milsom, Anson and Aitchison, Convolutional Deep Kernel Machines, ICLR 2024",
    ),
    Reference(
        *("the same with stochastic kernel regularisation", 94.5, -0.36, None, 87.0, "A100"),
        "Milsom, Anson and Aitchison, Stochastic Kernel Regularisation Improves Generalisation in"
        " Deep Kernel Machines, NeurIPS 2024",
    ),
    Reference(
        *("CKN-14", 90.2, None, None, 4.3, "a consumer GPU of 2017"),
        "reported for a supervised convolutional kernel network; the method is that of Mairal,"
        " NIPS 2016",
    ),
    Reference(
        *("small fast CNN", 94.0, None, 0.29, 2.59 / 3600, "A100"),
        "Jordan, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU, 2024 (airbench94_muon)",
    ),
)


def of_run(folder: Path) -> Curve:
    """The epochs of a finished run, with what each has cost."""
    path = folder / "metrics.json"
    if not path.is_file():
        raise InvalidInputError(f"{folder} has no metrics.json: finish it by convdkm resume")
    whole = json.loads(path.read_text())
    if "flops" not in whole:
        raise InvalidInputError(f"{path} has no flops: train the run again with this version")
    return [
        {
            **row,
            "pflop": whole["flops"] / 1e15 * row["step"] / whole["steps"],
            "cpu_hours": whole["cpu_seconds"] / 3600 * row["seconds"] / whole["seconds"],
        }
        for row in read_csv(folder / "epochs.csv")
    ]


def of_comparison(folder: Path) -> list[Curve]:
    """The finished trials of a comparison, each a curve of one point."""
    study = ComparisonFolder(folder)
    trials = [study.status(each) for each in study.read().planned()]
    done = [each for each in trials if each.state == "finished"]
    if not done or not all(each.fit_flops and each.fit_cpu_seconds for each in done):
        raise InvalidInputError(
            f"{folder} holds no finished trials, or trials whose FLOPs are not counted: compare"
            " methods for which convdkm tables shows TFLOP"
        )
    return [
        [
            {
                **{f"test_{name}": each.metrics[name] for name in ("accuracy", "log_likelihood")},
                "pflop": each.fit_flops / 1e15,
                "cpu_hours": each.fit_cpu_seconds / 3600,
            }
        ]
        for each in done
    ]


def curves(folder: Path) -> list[Curve]:
    """Those of a run or of a comparison."""
    return of_comparison(folder) if ComparisonFolder.is_one(folder) else [of_run(folder)]


def dataset_of(folder: Path) -> str:
    """What a run or a comparison is about."""
    if ComparisonFolder.is_one(folder):
        return ComparisonFolder(folder).read().scale.dataset
    return RunConfig.from_file(folder / "config.yaml").data.dataset


def references(folders: Iterable[Path]) -> tuple[Reference, ...]:
    """What is published, where all runs are of its data set."""
    return REFERENCES if {dataset_of(each) for each in folders} == {"cifar10"} else ()


def table(settings: dict[str, list[Curve]], published: Sequence[Reference]) -> str:
    """The last figures of every setting, and the published ones with their sources."""

    def figures(accuracy: float, likelihood: float | None, pflop: float | None) -> list[str]:
        shown = MISSING if likelihood is None else f"{likelihood:.2f}"
        return [f"{accuracy:.1f}", shown, rounded(pflop)]

    rows = []
    for label, seeds in settings.items():
        accuracy, likelihood, pflop, hours = (
            mean(seed[-1][name] for seed in seeds) for name in (*FIGURES, *COSTS)
        )
        cells = figures(100 * accuracy, likelihood, pflop)
        rows.append([label, "this run" if len(seeds) == 1 else f"{len(seeds)} runs", *cells])
        rows[-1].append(f"{rounded(hours)} (CPU)")
    for each in published:
        cells = figures(each.test_accuracy, each.test_log_likelihood, each.pflop)
        rows.append([each.name, each.source, *cells, f"{rounded(each.hours)} ({each.device})"])
    head = ["", "source", "accuracy (%)", "log-likelihood", "PFLOP", "hours"]
    return Grid(head, rows, labels=2).markdown()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", nargs="+", metavar="LABEL=RUN", help="folders of finished runs or comparisons"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("cost.png"))
    arguments = parser.parse_args()
    try:
        folders = labelled(arguments.runs)
        settings = {
            label: [curve for each in some for curve in curves(each)]
            for label, some in folders.items()
        }
    except InvalidInputError as error:
        parser.error(str(error))
    published = references(chain.from_iterable(folders.values()))
    print(table(settings, published))
    with figure(arguments.output, [2.6, 2.6], 2, 7.6) as (made, axes):
        for panels, (name, (label, _)) in zip(axes, FIGURES.items(), strict=True):
            for panel, along in zip(panels, COSTS, strict=True):
                draw_all(panel, settings, along, name)
            panels[0].set_ylabel(label)
            for each in published:
                value = getattr(each, name)
                if value is not None and each.pflop is not None:
                    look = {"color": PUBLISHED, "marker": "D", "ls": "", "label": each.name}
                    panels[0].plot([each.pflop], [value], **look)
        for column, (along, label) in zip(axes.T, COSTS.items(), strict=True):
            every = chain.from_iterable(chain.from_iterable(settings.values()))
            shown = [row[along] for row in every]
            if along == "pflop":
                shown += [each.pflop for each in published if each.pflop is not None]
            column[1].sharex(column[0])
            for panel in column:
                panel.set_xscale("log")
                plain_ticks(panel, sorted(shown))
            column[1].set_xlabel(label)
        add_legend(made, axes, 3)
    print(arguments.output)


if __name__ == "__main__":
    main()

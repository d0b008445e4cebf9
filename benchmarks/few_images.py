"""What variants of a recipe reach on few images: whole runs, with several seeds each.

Every variant changes some options of a preset. What is scored are training images that were held
out, so that settings can be chosen by the figures; with ``--held-out 0``, the test images. Printed
are means and standard errors over seeds, how many steps failed and had to be taken again, and
processor seconds of a run.

    python benchmarks/few_images.py cifar10 --train-size 500,1000 --common "image_size=8 crop=1" \\
        --variant "" --variant "nu=1" --variant "gram_samples=4 gram_noise=0.1 kl=taylor"
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from convdkm.cli.inputs import given_options
from convdkm.config import RunConfig
from convdkm.presets import preset
from convdkm.training import MemorySink
from convdkm.training.fit import fit

FIGURES = ("accuracy", "log_likelihood", "ece")


def with_few(config: RunConfig, size: int, held_out: int, steps: int | None) -> RunConfig:
    """The same on so many images, for so many steps at least, with others held out."""
    changes: dict[str, object] = {
        "train_size": size + held_out,
        "validation": held_out / (size + held_out),
        "evaluate_every": 0,
    }
    if held_out:
        changes["test_size"] = 100
    if steps is not None:
        changes["epochs"] = -(-steps // -(-size // config.training.batch_size))
    return config.updated(changes)


def in_words(values: Sequence[float], name: str) -> str:
    """Mean and standard error."""
    scale, digits = (100, 1) if name.endswith("accuracy") else (1, 3)
    shown = f"{mean(values) * scale:.{digits}f}"
    if len(values) == 1:
        return shown
    return f"{shown} ± {stdev(values) / len(values) ** 0.5 * scale:.{digits}f}"


def row(config: RunConfig, seeds: int, scored: str) -> str:
    """The cells of a variant at one size."""
    names = [*(f"{scored}_{name}" for name in FIGURES), "train_accuracy", "train_log_likelihood"]
    found: dict[str, list[float]] = {name: [] for name in [*names, "cpu_seconds"]}
    failed = 0
    for seed in range(seeds):
        memory = MemorySink()
        run = fit(config.updated({"seed": seed}), sinks=[memory])
        failed += sum("was not taken" in text for _, text in memory.messages)
        for name, values in found.items():
            values.append(run.metrics[name])
    cells = [in_words(found[name], name) for name in names]
    return " | ".join([*cells, str(failed), f"{mean(found['cpu_seconds']):.0f}"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = os.environ.get("CONVDKM_DATA", Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("dataset", nargs="?", default="cifar10")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--train-size", default="1000", metavar="N,N")
    parser.add_argument(
        "--held-out", type=int, default=2000, metavar="N", help="0: score test images"
    )
    parser.add_argument("--steps", type=int, help="in place of the preset's epochs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--common", default="", metavar="'NAME=VALUE NAME=VALUE'")
    parser.add_argument("--variant", action="append", metavar="'NAME=VALUE NAME=VALUE'")
    parser.add_argument("--data-dir", default=str(folder))
    arguments = parser.parse_args()
    base = preset(arguments.preset).config(arguments.dataset, data_dir=arguments.data_dir)
    base = base.updated(given_options(arguments.common.split()))
    scored = "validation" if arguments.held_out else "test"
    heading = [f"{scored} accuracy (%)", "log-likelihood", "calibration error"]
    heading += ["training accuracy (%)", "log-likelihood", "failed steps", "CPU s"]
    print(f"| images | options | {' | '.join(heading)} |")
    print("|---" * (len(heading) + 2) + "|")
    for size in map(int, arguments.train_size.split(",")):
        for variant in arguments.variant or [""]:
            config = base.updated(given_options(variant.split()))
            config = with_few(config, size, arguments.held_out, arguments.steps)
            cells = row(config, arguments.seeds, scored)
            print(f"| {size:,} | {variant or 'no change'} | {cells} |", flush=True)


if __name__ == "__main__":
    main()

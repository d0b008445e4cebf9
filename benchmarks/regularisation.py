"""The follow-up's ablation of stochastic kernel regularisation, on few images.

Rows with and without sampled Gram matrices and the KL to second order are trained on so few images
that a machine without regularisation overfits, with several seeds each. A sample of P/4 vectors, as
the follow-up has it, holds 128 to 512 of them at its widths and 4 to 16 at 16/32/64; so γ is given
as a share of P, 4 by default, which makes 64 to 256. Printed are means and standard errors over
seeds, and how many steps failed and had to be taken again.

    python benchmarks/regularisation.py cifar10 --train-size 1000 --epochs 150 --seeds 3
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from convdkm.cli.inputs import given_options
from convdkm.presets import preset
from convdkm.training import MemorySink
from convdkm.training.fit import fit

FIGURES = ("test_accuracy", "test_log_likelihood", "train_accuracy", "train_log_likelihood")


def rows(samples: float) -> dict[str, dict[str, object]]:
    """Settings of the rows, by their labels."""
    sampled = {"gram_samples": samples, "gram_noise": 0.1}
    return {
        "sampled, second-order KL": {**sampled, "kl": "taylor"},
        "sampled, exact KL": {**sampled, "kl": "exact"},
        "not sampled, second-order KL": {"kl": "taylor"},
        "not sampled, exact KL": {"kl": "exact"},
    }


def in_words(values: Sequence[float], percent: bool) -> str:
    """Mean and standard error."""
    scale, digits = (100, 1) if percent else (1, 3)
    shown = f"{mean(values) * scale:.{digits}f}"
    if len(values) == 1:
        return shown
    return f"{shown} ± {stdev(values) / len(values) ** 0.5 * scale:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = os.environ.get("CONVDKM_DATA", Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("dataset", nargs="?", default="cifar10")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--train-size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=float, default=4.0, help="γ as a share of P")
    parser.add_argument("--set", default="", metavar="'NAME=VALUE NAME=VALUE'")
    parser.add_argument("--data-dir", default=str(folder))
    arguments = parser.parse_args()
    base = preset(arguments.preset).config(
        arguments.dataset,
        data_dir=arguments.data_dir,
        train_size=arguments.train_size,
        epochs=arguments.epochs,
        evaluate_every=0,
        compile=True,
    )
    base = base.updated(given_options(arguments.set.split()))
    heading = ["test accuracy (%)", "log-likelihood", "training accuracy (%)", "log-likelihood"]
    print(f"| | {' | '.join(heading)} | failed steps |")
    print("|---|---|---|---|---|---|")
    for label, options in rows(arguments.samples).items():
        found: dict[str, list[float]] = {name: [] for name in FIGURES}
        failed = 0
        for seed in range(arguments.seeds):
            memory = MemorySink()
            run = fit(base.updated({**options, "seed": seed}), sinks=[memory])
            failed += sum("was not taken" in text for _, text in memory.messages)
            for name, values in found.items():
                values.append(run.metrics[name])
        shown = [in_words(values, "accuracy" in name) for name, values in found.items()]
        print(f"| {label} | {' | '.join(shown)} | {failed} |", flush=True)


if __name__ == "__main__":
    main()

"""How fast variants of a recipe learn in their first steps: short runs, one after another.

Every variant changes some options of a preset. A run is one epoch of as many training images as its
steps need, with the whole schedule of the learning rate in it, so that no image is seen twice and
the figures of a window of steps are those of images the machine has not seen: nothing is chosen
with an eye on the test set. Printed are the expected negative log-likelihood and the accuracy of
windows of steps, and the seconds of the whole run, loading included.

    python benchmarks/learning.py cifar10 --preset quick --steps 200 --common "nu=0.01" \\
        --variant "" --variant "gram_scale=1 learning_rate=0.01" \\
        --variant "kernel=normalised-gaussian gamma=3"
"""

import argparse
import os
import time
from pathlib import Path

from convdkm.cli.inputs import given_options
from convdkm.config import RunConfig
from convdkm.presets import preset
from convdkm.training import MemorySink
from convdkm.training.fit import fit


def short(config: RunConfig, steps: int) -> RunConfig:
    """The recipe in so many steps, on images that are seen once."""
    size = steps * config.training.batch_size
    return config.updated(
        {"train_size": size, "epochs": 1, "evaluate_every": 0, "test_size": 1000, "calibrate": 0}
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = os.environ.get("CONVDKM_DATA", Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("dataset", nargs="?", default="cifar10")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--window", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=1, help="runs of every variant")
    parser.add_argument(
        "--common",
        default="",
        metavar="'NAME=VALUE NAME=VALUE'",
        help="options of every variant that does not say otherwise",
    )
    parser.add_argument(
        "--variant",
        action="append",
        metavar="'NAME=VALUE NAME=VALUE'",
        help="options that differ from the preset's; may be repeated, and be empty",
    )
    parser.add_argument("--data-dir", default=str(folder))
    arguments = parser.parse_args()
    base = preset(arguments.preset).config(arguments.dataset, data_dir=arguments.data_dir)
    base = base.updated(given_options(arguments.common.split()))
    for variant in arguments.variant or [""]:
        for seed in range(arguments.seeds):
            config = short(
                base.updated({**given_options(variant.split()), "seed": seed}), arguments.steps
            )
            memory = MemorySink()
            start = time.perf_counter()
            fit(config, sinks=[memory])
            took = time.perf_counter() - start
            parts = []
            for first in range(0, len(memory.steps), arguments.window):
                part = [record.values for record in memory.steps[first : first + arguments.window]]
                likelihood = sum(each["expected_log_likelihood"] for each in part) / len(part)
                accuracy = sum(each["accuracy"] for each in part) / len(part)
                parts.append(f"{-likelihood:.3f} {accuracy:6.2%}")
            name = variant or "no change"
            print(f"{name}, seed {seed}: {' | '.join(parts)} | {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()

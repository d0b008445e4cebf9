"""What a batch costs before the model sees it, beside the step that follows.

Times shuffling, cropping, flipping and whitening of a batch, and the training step on it, of a
preset's machine on CIFAR-10 (or another set); prints the share of the time that goes into loading.

    python benchmarks/loading.py cifar10 --preset published --data-dir ../shared/data
"""

import argparse
import os
import statistics
import time
from pathlib import Path

from convdkm.presets import preset
from convdkm.training.session import prepared
from convdkm.training.world import World


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = os.environ.get("CONVDKM_DATA", Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("dataset", nargs="?", default="cifar10")
    parser.add_argument("--preset", default="published")
    parser.add_argument("--data-dir", default=str(folder))
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()

    config = preset(arguments.preset).config(arguments.dataset, data_dir=arguments.data_dir)
    trainer = prepared(config, None, World()).trainer
    loading, stepping = [], []
    batches = trainer.batches.epoch(0)
    for _ in range(arguments.steps):
        start = time.perf_counter()
        inputs, targets = next(batches)
        ready = time.perf_counter()
        trainer.step(inputs, targets)
        loading.append(ready - start)
        stepping.append(time.perf_counter() - ready)
    load, step = statistics.median(loading[1:]), statistics.median(stepping[1:])
    print(f"{arguments.dataset}, {arguments.preset}: batches of {config.training.batch_size}")
    print(f"loading {1000 * load:.0f} ms, step {1000 * step:.0f} ms: {load / (load + step):.1%}")


if __name__ == "__main__":
    main()

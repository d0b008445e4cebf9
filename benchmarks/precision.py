"""Float32 beside float64: the objective of resnet20 over the first Adam steps on CIFAR-10.

Both runs start from the same parameters and see the same batches, with the paper's optimiser
(Adam, rate 0.01, betas 0.8 and 0.9). Prints the two curves and their relative difference.

    python benchmarks/precision.py --steps 200
"""

import argparse
import copy
import math
import os
import time
from pathlib import Path

import torch

import convdkm as dkm
from convdkm.data import ZCA, load_cifar10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("CONVDKM_DATA", Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--data-dir", type=Path, default=default, help="holds cifar-10-batches-py")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--inducing", type=int, nargs=3, default=(16, 32, 64))
    parser.add_argument("--published", action="store_true", help="settings of the published runs")
    parser.add_argument("--strides", type=int, nargs=3, default=None, help="1 2 2 unless published")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=10, help="print every so many steps")
    arguments = parser.parse_args()

    data = load_cifar10(arguments.data_dir)
    images = ZCA().fit(data.train_images)(data.train_images)
    labels = data.train_labels
    torch.manual_seed(arguments.seed)
    options = dict(dkm.PUBLISHED, expectation="nodes") if arguments.published else {}
    if arguments.strides is not None:
        options["strides"] = tuple(arguments.strides)
    single = dkm.resnet20(3, 10, arguments.inducing, **options)
    single.initialise(images, labels, seed=arguments.seed)
    models = {"float32": single, "float64": copy.deepcopy(single).double()}
    optimisers = {
        name: torch.optim.Adam(model.parameters(), lr=arguments.rate, betas=(0.8, 0.9))
        for name, model in models.items()
    }
    seconds = dict.fromkeys(models, 0.0)
    largest = 0.0
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(arguments.seed))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'step':>5} {'float32':>12} {'float64':>12} {'difference':>12}")
    for step in range(arguments.steps):
        batch = order.roll(-step * arguments.batch)[: arguments.batch]
        totals = {}
        for name, model in models.items():
            start = time.perf_counter()
            objective = model.objective(images[batch], labels[batch], num_data=len(images))
            optimisers[name].zero_grad()
            (-objective.total).backward()
            optimisers[name].step()
            seconds[name] += time.perf_counter() - start
            totals[name] = float(objective.total.detach())
        difference = abs(totals["float32"] - totals["float64"]) / abs(totals["float64"])
        largest = max(largest, difference)
        if math.isnan(difference):
            raise SystemExit(f"step {step}: {totals}: not a number")
        if step % arguments.every == 0 or step == arguments.steps - 1:
            print(
                f"{step:5d} {totals['float32']:12.6f} {totals['float64']:12.6f} {difference:12.2e}",
                flush=True,
            )
    print(f"largest relative difference: {largest:.2e}")
    for name, value in seconds.items():
        print(f"{name}: {value / arguments.steps:.3f} s a step")


if __name__ == "__main__":
    main()

"""Float32 beside float64: the objective of resnet20 over the first Adam steps on CIFAR-10.

All runs see the same batches, with the paper's optimiser (Adam, rate 0.01, betas 0.8 and 0.9), and
start from the same parameters; but for a third one, in float64, whose start is nudged by as much
as float32 rounds. Small differences may grow in training whatever the precision, so what float32
costs is to be read against how far that third run drifts.

    python benchmarks/precision.py --steps 200
"""

import argparse
import copy
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import convdkm as dkm
from convdkm.data import ZCA, load_cifar10


def parse() -> argparse.Namespace:
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
    parser.add_argument(
        "--nudge", type=float, default=2.0**-24, help="relative; 0 for no third run"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=10, help="print every so many steps")
    return parser.parse_args()


def nudged(model: dkm.DeepKernelMachine, size: float) -> dkm.DeepKernelMachine:
    """A copy whose parameters are multiplied by ``1 ± size``."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + size * torch.randn_like(parameter).sign())
    return model


def relative(curve: list[float], truth: list[float]) -> float:
    """Difference of the means of two stretches of curve."""
    return abs(sum(curve) - sum(truth)) / abs(sum(truth))


def main() -> None:
    arguments = parse()
    data = load_cifar10(arguments.data_dir)
    images = ZCA().fit(data.train_images)(data.train_images)
    labels = data.train_labels
    torch.manual_seed(arguments.seed)
    options = dict(dkm.PUBLISHED, expectation="nodes") if arguments.published else {}
    if arguments.strides is not None:
        options["strides"] = tuple(arguments.strides)
    single = dkm.resnet20(3, 10, arguments.inducing, **options)
    single.initialise(images, labels, seed=arguments.seed)
    double = copy.deepcopy(single).double()
    models = {"float64": double, "float32": single}
    if arguments.nudge:
        models["nudged"] = nudged(double, arguments.nudge)
    optimisers = {
        name: torch.optim.Adam(model.parameters(), lr=arguments.rate, betas=(0.8, 0.9))
        for name, model in models.items()
    }
    curves: dict[str, list[float]] = {name: [] for name in models}
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(arguments.seed))

    def train(name: str, batch: torch.Tensor) -> None:
        torch.set_num_threads(1)
        objective = models[name].objective(images[batch], labels[batch], num_data=len(images))
        optimisers[name].zero_grad()
        (-objective.total).backward()
        optimisers[name].step()
        curves[name].append(float(objective.total.detach()))

    print(f"torch {torch.__version__}; the objective at each step, and the relative difference of")
    print(f"its mean over the last {arguments.every} steps from that of float64")
    others = [name for name in models if name != "float64"]
    print("step", *(f"{name:>11}" for name in models), *(f"{'Δ ' + name:>11}" for name in others))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for step in range(arguments.steps):
            batch = order.roll(-step * arguments.batch)[: arguments.batch]
            list(pool.map(train, models, [batch] * len(models)))
            if any(math.isnan(curve[-1]) for curve in curves.values()):
                raise SystemExit(f"step {step + 1}: an objective is not a number: {curves}")
            if (step + 1) % arguments.every == 0 or step in (0, arguments.steps - 1):
                recent = {name: curve[-arguments.every :] for name, curve in curves.items()}
                values = (f"{curve[-1]:11.6f}" for curve in curves.values())
                drift = (f"{relative(recent[name], recent['float64']):11.1e}" for name in others)
                print(f"{step + 1:4d}", *values, *drift, flush=True)
    for name in others:
        whole = relative(curves[name], curves["float64"])
        print(f"mean of the whole curve, {name} against float64: {whole:.1e}")


if __name__ == "__main__":
    main()

"""Processor seconds of a training step of a preset's machine, and of a CNN of the same shape.

The CNN has the machine's convolutions with batch normalisation and ReLUs, and is timed in both
memory layouts of PyTorch. All run in turn on one thread, the machine as ``--compile`` trains it.
What counts is the processor time of this process, which other work on the machine changes little.
FLOPs are counted from what PyTorch starts; those of the inducing chain and of the optimiser are
the ones that do not depend on the number of images. With ``--precision bfloat16``, the machine and
the CNN make their products in it. Both take the steps of the preset's optimiser.

    python benchmarks/wide_step.py --preset fast --inducing 64/128/256 128/256/512
    python benchmarks/wide_step.py --set "blocks=1 optimiser=adam"
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from convdkm.cli.inputs import given_options
from convdkm.config import Precision, RunConfig
from convdkm.lab.baselines.cnn import optimiser_of
from convdkm.lab.bench.contestants import (
    CHANNELS,
    CLASSES,
    NUM_DATA,
    Contestant,
    Workload,
    networks,
)
from convdkm.lab.bench.measure import Lap, in_turn
from convdkm.presets import preset
from convdkm.runtime.allocator import keep_freed_memory
from convdkm.training.build import built, products_in
from convdkm.training.cost import step_cost
from convdkm.training.gradients import RecordedGradients
from convdkm.training.optimiser import Optimiser

INITIAL_IMAGES, SETTLING = 512, 1.0


def processor_time(step: Callable[[], object]) -> Callable[[], Lap]:
    """A step that returns the processor seconds it took."""

    def lap() -> Lap:
        start = time.process_time()
        step()
        return (time.process_time() - start,)

    return lap


def compared(
    base: RunConfig, widths: tuple[int, ...], batch: int, repeats: int, precision: Precision
) -> str:
    """A line of the table."""
    config = base.updated({"inducing": list(widths), "precision": precision})
    blocks, strides = (
        tuple(given) * (len(widths) if len(given) == 1 else 1)
        for given in (config.model.blocks, config.model.strides)
    )
    workload = Workload(widths, batch, blocks=blocks)
    assert strides == workload.strides, "the CNN has stride 2 at every stage"
    model = built(config.model, config.training, CHANNELS, CLASSES)
    images, labels = workload.images(INITIAL_IMAGES), workload.labels(INITIAL_IMAGES)
    model.initialise(images, labels, seed=workload.seed)
    cost = step_cost(model, config.training, images, labels)
    model.compile_elementwise()
    gradients = RecordedGradients(model, num_data=NUM_DATA)
    optimiser = Optimiser(model, config.training, num_data=NUM_DATA)

    def step() -> None:
        optimiser.zero_grad()
        with products_in(precision, model.device):
            gradients(images[:batch], labels[:batch])
        optimiser.step()

    def stepped(network: Contestant) -> Callable[[], None]:
        (group,) = network.optimiser.param_groups
        network.optimiser = optimiser_of(group["params"], config.training, model.device)

        def step() -> None:
            network.forget()
            with products_in(precision, model.device):
                network.step()

        return step

    steps = {"ours": step, **{name: stepped(each) for name, each in networks(workload).items()}}
    laps = in_turn(
        {name: processor_time(each) for name, each in steps.items()}, repeats, settling=SETTLING
    )
    ours, *others = (median(seconds) for (seconds,) in laps.values())
    shown = "  ".join(f"{each:6.3f} s {ours / each:5.2f}" for each in others)
    done = f"{cost.at(batch) / 1e9:7.1f} {cost.fixed / 1e9:7.1f}"
    return f"{workload.name:>14}  {ours:6.3f} s  {shown}  {done}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = ["16/32/64", "32/64/128", "64/128/256"]
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--inducing", nargs="+", default=sizes, metavar="N/N/N")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument(
        "--set", default="", metavar="'NAME=VALUE NAME=VALUE'", help="of the preset"
    )
    arguments = parser.parse_args()
    base = preset(arguments.preset).config("cifar10")
    base = base.updated(given_options(arguments.set.split()))
    keep_freed_memory()
    torch.set_num_threads(1)
    print(
        f"{'inducing':>14}  {'ours':>8}  {'CNN':>8} {'ratio':>5}  {'ch. last':>8} {'ratio':>5}"
        f"  {'GFLOP':>7} {'fixed':>7}"
    )
    for size in arguments.inducing:
        widths = tuple(map(int, size.split("/")))
        line = compared(*(base, widths, arguments.batch, arguments.repeats, arguments.precision))
        print(line, flush=True)


if __name__ == "__main__":
    main()

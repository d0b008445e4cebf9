"""The memory that training takes, as it is estimated before a run begins and as it is measured.

For every size, in a process of its own, three steps of training on random images of 32×32: the
batches, Adam, the state that a failed step goes back to, gradients and activations, beyond machine
and images. Printed are the estimate, what torch's allocator held at the worst moment, and by how
much the process grew, which includes the scratch space of libraries and what the C library keeps
for itself.

    python benchmarks/training_memory.py --inducing 16/32/64 64/128/256
    python benchmarks/training_memory.py --preset accurate --precision bfloat16 --batch 256
"""

import argparse
import multiprocessing
from dataclasses import replace

import torch

from convdkm.config import Precision
from convdkm.lab.studies.comparison.measuring import forget_peak, memory_now, peak_memory
from convdkm.presets import preset
from convdkm.runtime import memory
from convdkm.runtime.allocator import keep_freed_memory
from convdkm.training.batches import Batches
from convdkm.training.build import built
from convdkm.training.loop import Trainer
from convdkm.training.memory import Demand, estimate
from convdkm.training.world import World

STEPS = 3
"""In the third step everything is there: Adam has averages, and there is a copy of them."""
CPU = torch.device("cpu")


def measured(
    name: str, inducing: list[int], batch: int, precision: Precision
) -> tuple[float, int, int]:
    """Bytes: the estimate, the allocator's peak, and the growth of the process."""
    keep_freed_memory()
    torch.set_num_threads(1)
    options = {"inducing": inducing, "batch_size": batch, "precision": precision}
    options |= {"epochs": 1, "calibrate": 0, "compile": False}
    config = preset(name).config("cifar10", **options)
    recipe, count = config.training, STEPS * batch
    images, labels = torch.randn(count, 3, 32, 32), torch.arange(count) % 10
    model = built(config.model, recipe, 3, 10).initialise(images[:64], labels[:64], seed=0)

    def train() -> None:
        model.zero_grad()
        Trainer(model, Batches.of(recipe, images, labels), recipe).run()

    forget_peak()
    before = memory_now()
    train()
    grown = peak_memory() - before
    held = memory.peak_memory(train)
    demand = Demand.of(recipe, images, World(), CPU, initialises=False)
    found = estimate(model, replace(demand, evaluation=1, held=0), CPU, there=1)
    assert found is not None
    return found.needed, held, grown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = ["16/32/64", "64/128/256", "128/256/512"]
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--inducing", nargs="+", default=sizes, metavar="N/N/N")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    arguments = parser.parse_args()
    print(
        f"{'inducing':>14} {'estimate':>12} {'allocator':>12} {'process':>12}  estimate/allocator"
    )
    for size in arguments.inducing:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            widths = list(map(int, size.split("/")))
            given = (arguments.preset, widths, arguments.batch, arguments.precision)
            expected, held, grown = pool.apply(measured, given)
        megabytes = " ".join(f"{each / 1e6:9,.1f} MB" for each in (expected, held, grown))
        print(f"{size:>14} {megabytes}  {expected / held:.2f}", flush=True)


if __name__ == "__main__":
    main()

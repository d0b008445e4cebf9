"""What working on a batch in pieces saves in memory, costs in time, and changes in the gradient.

For every size of the pieces, in a process of its own: the peak of memory above what the machine
itself takes, the time of the second step, and how far the gradient is from that of the whole batch,
which is nothing but rounding unless statistics of the batch are used.

    python benchmarks/micro_batch.py --sizes 256 64 16
"""

import argparse
import multiprocessing
import resource
import time

import torch

import convdkm as dkm
from convdkm.training.passes import Passes
from convdkm.training.world import World


def peak() -> float:
    """The most memory that this process had so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def gradient(size: int, arguments: argparse.Namespace) -> tuple[torch.Tensor, float, float]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(arguments.batch, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (arguments.batch,), generator=generator)
    torch.manual_seed(0)
    model = dkm.resnet20(
        in_channels=3,
        num_classes=10,
        inducing=(16, 32, 64),
        strides=(2, 2, 2),
        normalisation=("batch", arguments.norm),
    ).initialise(images[:32], labels[:32], seed=0)
    passes = Passes(model, World(), num_data=50000, micro_batch=size)
    before = peak()
    passes.gradients(images, labels, total=len(images), seed=0)
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    start = time.perf_counter()
    passes.gradients(images, labels, total=len(images), seed=0)
    return flat, peak() - before, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 64, 16])
    parser.add_argument("--norm", nargs="+", default=["image", "batch"], help="of the data block")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for norm in arguments.norm:
        options = argparse.Namespace(batch=arguments.batch, norm=norm)
        whole = None
        for size in arguments.sizes:
            with context.Pool(1) as pool:
                found, memory, seconds = pool.apply(gradient, (size, options))
            whole = found if whole is None else whole
            off = float((found - whole).norm() / whole.norm())
            print(
                f"{norm:8} pieces of {size:4}: {memory:6.0f} MB, {seconds:5.1f} s, off by {off:.1e}"
            )


if __name__ == "__main__":
    main()

"""One training step of a residual machine on large images: memory and time.

The peak of the process is that of the operating system, with Python, PyTorch and what libraries
take for themselves; the meter's is what torch held beyond what stood before the step, in a second
step. Initialisation looks at as many images as a batch has.

    python benchmarks/large_images.py --side 224 --batch 8 --checkpointing
"""

import argparse
import resource
import time

import torch

import convdkm as dkm
from convdkm.runtime.memory import peak_memory


def peak() -> float:
    """The most memory that this process had so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=224, help="height and width of the images")
    parser.add_argument("--batch", type=int, default=8, help="images of the step")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--blocks", type=int, default=3, help="residual blocks of every stage")
    parser.add_argument("--strides", type=int, nargs="+", default=[2, 2, 2], help="of the stages")
    parser.add_argument("--input-stride", type=int, default=2, help="of the input patches")
    parser.add_argument("--checkpointing", action="store_true", help="work blocks out again")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-meter", action="store_true", help="one step only, not traced")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    images = torch.randn(arguments.batch, 3, arguments.side, arguments.side)
    labels = torch.arange(arguments.batch) % 10
    blocks = (arguments.blocks,) * len(arguments.widths)
    model = dkm.resnet(
        3,
        10,
        tuple(arguments.widths),
        blocks,
        strides=tuple(arguments.strides),
        input_stride=arguments.input_stride,
    ).initialise(images, labels, seed=0)
    model.checkpointing = arguments.checkpointing
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.8, 0.9))

    def step() -> None:
        optimiser.zero_grad()
        (-model.objective(images, labels, num_data=1000).total).backward()
        optimiser.step()

    settings = ", ".join(f"{name} {value}" for name, value in vars(arguments).items())
    print(settings)
    before = peak()
    start, cpu = time.perf_counter(), time.process_time()
    step()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(f"process: {before:.2f} GB before the step, at most {peak():.2f} GB")
    print(f"step: {seconds:.1f} s, {cpu:.1f} s of the processor")
    if not arguments.no_meter:
        optimiser.zero_grad()
        print(f"meter: {peak_memory(step) / 1e9:.2f} GB")


if __name__ == "__main__":
    main()

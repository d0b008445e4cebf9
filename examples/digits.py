"""Train a small convolutional deep kernel machine on handwritten digits.

The digits are scikit-learn's: 1797 real images of 8×8 pixels, of which 360 are kept for testing.
Prints accuracy and log-likelihood on them.

    python examples/digits.py --epochs 20
"""

import argparse
import time

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

import convdkm as dkm
from convdkm.data import load_digits


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.1, help="peak learning rate of Adam")
    parser.add_argument("--nu", type=float, default=0.1, help="weight of every layer's KL")
    parser.add_argument("--inducing", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Train, with a progress bar, and print the figures of the test set."""
    options = parse()
    console = Console()
    torch.manual_seed(options.seed)
    data = load_digits()
    scale = data.train_images.std()
    images, labels = data.train_images / scale, data.train_labels

    model = dkm.resnet(
        in_channels=1,
        num_classes=data.num_classes,
        inducing=options.inducing,
        blocks=[1] * len(options.inducing),
        nu=options.nu,
        mixing="patches",
        centre=True,
        gram_parameterisation="whitened",
        gram_scale=100.0,
        head_parameterisation="whitened",
    )
    model.initialise(images, labels, seed=options.seed)
    steps = options.epochs * -(-len(images) // options.batch)
    optimiser = torch.optim.Adam(model.parameters(), lr=options.rate, betas=(0.8, 0.9))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, options.rate, total_steps=steps)

    start = time.perf_counter()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("objective {task.fields[objective]:.4f}"),
        console=console,
    )
    with progress:
        task = progress.add_task("training", total=steps, objective=float("nan"))
        for _ in range(options.epochs):
            for batch in torch.randperm(len(images)).split(options.batch):
                objective = model.objective(images[batch], labels[batch], num_data=len(images))
                optimiser.zero_grad()
                (-objective.total).backward()
                optimiser.step()
                schedule.step()
                progress.update(task, advance=1, objective=float(objective.total.detach()))
    seconds = time.perf_counter() - start

    model.calibrate(images.split(256))
    prediction = model.eval().predict(data.test_images / scale)
    accuracy = float(prediction.accuracy(data.test_labels))
    log_likelihood = float(prediction.log_prob(data.test_labels).mean())
    print(f"{len(images)} training images, {steps} steps, {seconds:.1f} s")
    print(f"test accuracy {accuracy:.2%}, test log-likelihood {log_likelihood:.4f}")


if __name__ == "__main__":
    main()

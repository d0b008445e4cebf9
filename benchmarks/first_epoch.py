"""The first epochs of a published run: resnet20 on CIFAR-10 with the published settings.

Random crops and flips come before ZCA whitening, inducing patches from images that are standardised
but not whitened, as in the published runs. Prints the mean objective of each epoch, and accuracy
and log-likelihood on the whole test set after it, to be put beside the published curves.

    python benchmarks/first_epoch.py --epochs 1
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import convdkm as dkm
from convdkm.data import ZCA, load_cifar10


def augmented(images: Tensor, margin: int = 4) -> Tensor:
    """Each image cropped at random from itself with a margin of zeros, and flipped at random."""
    count, side = len(images), images.shape[-1]
    padded = F.pad(images, (margin,) * 4)
    corners = torch.randint(2 * margin + 1, (2, count, 1))
    rows, columns = corners + torch.arange(side)
    columns = torch.where(torch.rand(count, 1) < 0.5, columns, columns.flip(1))
    which = torch.arange(count).reshape(-1, 1, 1)
    return padded[which, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("CONVDKM_DATA", Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--data-dir", type=Path, default=default, help="holds cifar-10-batches-py")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--inducing", type=int, nargs=3, default=(16, 32, 64))
    parser.add_argument("--nu", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    data = load_cifar10(arguments.data_dir)
    images, labels = data.train_images, data.train_labels
    whiten = ZCA().fit(images)
    axes = (0, 2, 3)
    standard = (images - images.mean(axes, keepdim=True)) / images.std(axes, keepdim=True)
    model = dkm.resnet20(3, 10, arguments.inducing, nu=arguments.nu, **dkm.PUBLISHED)
    model.initialise(standard, labels, seed=arguments.seed, max_images=500)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.8, 0.9))
    print(f"{'epoch':>5} {'objective':>9} {'test acc.':>9} {'test LL':>9} {'seconds':>9}")
    for epoch in range(arguments.epochs):
        start, total = time.perf_counter(), 0.0
        model.train()
        batches = torch.randperm(len(images)).split(256)
        for batch in batches:
            inputs = whiten(augmented(images[batch]))
            objective = model.objective(inputs, labels[batch], num_data=len(images))
            optimiser.zero_grad()
            (-objective.total).backward()
            optimiser.step()
            total += objective.total.item() * len(batch) / len(images)
        seconds = time.perf_counter() - start
        prediction = model.predict(whiten(data.test_images), batch_size=250)
        accuracy = prediction.accuracy(data.test_labels).item()
        log_likelihood = prediction.log_prob(data.test_labels).mean().item()
        print(
            f"{epoch:5d} {total:9.4f} {accuracy:9.2%} {log_likelihood:9.4f} {seconds:9.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""How far the expectations of the categorical likelihood are from the truth, for a shared variance.

    python benchmarks/categorical_error.py

For every number of classes and every variance: the error of E[log Σ exp f] and the Kullback-Leibler
divergence of the predictive probabilities from the true ones, both in nats. The first figure is
that of the likelihood's integral, the second that of as many quasi-random nodes, mirrored and with
unit covariance (what it used before), each the largest over means between 0 and 0, 1, 5 and 20. The
third is that of as many random samples, and the smallest over the means (root mean square, or mean,
over repeats). The truth is quadrature on a dense grid (``tests/oracle/likelihood.py``).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.quasirandom import SobolEngine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from convdkm.likelihoods.softmax import NODES, NormalSoftmax
from oracle.softmax_cases import CLASSES, LARGEST_MEANS, VARIANCES, SoftmaxCase


def quasi_random_nodes(count: int, dim: int) -> np.ndarray:
    """The nodes of before: a Sobol sequence, mirrored, rescaled to unit covariance or variances."""
    half = SobolEngine(dim, scramble=True, seed=0).draw(count // 2, dtype=torch.float64)
    half = torch.special.ndtri(half.clamp(1e-9, 1 - 1e-9))
    covariance = half.T @ half / len(half)
    if len(half) > dim:
        half = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), half.T, upper=False)
        half = half.T
    else:
        half = half / covariance.diagonal().sqrt()
    return torch.cat([half, -half]).numpy()


def of_the_integral(case: SoftmaxCase, nodes: int, dtype: torch.dtype) -> tuple[float, float]:
    """Errors of what :class:`convdkm.Categorical` works with."""
    mean = torch.tensor(case.mean[None]).to(dtype)
    moments = NormalSoftmax(nodes).moments(mean, mean.new_full((1, 1), case.variance**0.5))
    return case.errors(moments.log_sum_exp.double().numpy(), moments.log_probs.double().numpy())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=NODES, help="of each; an even number")
    parser.add_argument("--repeats", type=int, default=20, help="of the random samples")
    parser.add_argument(
        "--dtype", choices=("float64", "float32"), default="float64", help="of the integral"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    titles = ("Error of the expected log Σ exp f", "Divergence of the predictive probabilities")
    tables = [Table("variance", *(f"{n} classes" for n in CLASSES), title=t) for t in titles]
    worse = 0
    for variance in VARIANCES:
        cells: tuple[list[str], list[str]] = ([], [])
        for classes in CLASSES:
            before = quasi_random_nodes(arguments.nodes, classes)[None]
            found = []
            for largest in LARGEST_MEANS:
                case = SoftmaxCase(classes, variance, largest)
                found.append(
                    (
                        of_the_integral(case, arguments.nodes, getattr(torch, arguments.dtype)),
                        case.errors_of_nodes(before),
                        case.errors_of_samples(arguments.nodes, arguments.repeats),
                    )
                )
            figures = np.abs(np.array(found))  # (means, ways, both figures)
            worse += int((figures[:, 0] > figures[:, 2]).sum())
            for each, cell in enumerate(cells):
                ours, theirs, samples = figures[:, :, each].T
                cell.append(f"{ours.max():.0e} / {theirs.max():.0e} / {samples.min():.0e}")
        for table, row in zip(tables, cells, strict=True):
            table.add_row(f"{variance:g}", *row)
    console = Console(width=170)
    for table in tables:
        console.print(table)
    total = 2 * len(VARIANCES) * len(CLASSES) * len(LARGEST_MEANS)
    console.print(f"integral / nodes of before / samples; worse than samples: {worse} of {total}")


if __name__ == "__main__":
    main()

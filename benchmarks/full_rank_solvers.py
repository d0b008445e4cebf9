"""Iterations, evaluations and seconds that the solvers of full-rank machines take.

    python benchmarks/full_rank_solvers.py [--points 40] [--most 2000]

For two kernels, several depths and ν: what natural steps, L-BFGS and Adam take until the objective
is within 1e-6 nats of the best that any of them finds. An evaluation is one of the objective with
its gradient, those for products with the Hessian included. Seconds are CPU seconds of one thread:
those of the whole fit, times the share of its evaluations made until then.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

import convdkm as dkm
from convdkm.exact import FullRankDKM

CASES = [
    (dkm.ArcCosine, 1, 1.0),
    (dkm.ArcCosine, 2, 100.0),
    (dkm.ArcCosine, 2, 10.0),
    (dkm.ArcCosine, 2, 1.0),
    (dkm.ArcCosine, 2, 0.1),
    (dkm.ArcCosine, 2, 0.01),
    (dkm.ArcCosine, 4, 1.0),
    (dkm.SquaredExponential, 2, 10.0),
    (dkm.SquaredExponential, 2, 1.0),
    (dkm.SquaredExponential, 2, 0.1),
]
SOLVERS = {
    "natural": {"parameterisation": "direct"},
    "lbfgs": {"parameterisation": "whitened"},
    "adam": {"parameterisation": "whitened"},
}
CLOSE = 1e-6


class Run(NamedTuple):
    totals: list[float]
    evaluations: list[int]
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=40, help="training points")
    parser.add_argument("--most", type=int, default=2000, help="iterations of L-BFGS and of Adam")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(title=f"To within {CLOSE:g} nats of the optimum, {arguments.points} points")
    for name in ("kernel", "depth", "ν"):
        table.add_column(name)
    for solver in SOLVERS:
        table.add_column(f"{solver}: iterations, evaluations, seconds", justify="right")
    x, y = data(arguments.points)
    for kernel, depth, nu in CASES:
        runs = {}
        for solver, options in SOLVERS.items():
            machine = FullRankDKM.from_data(x, y, depth=depth, nu=nu, kernel=kernel(), **options)
            start = time.process_time()
            history = machine.fit(arguments.most, method=solver, tolerance=1e-10)
            totals = [float(value.total) for value in history]
            evaluations = [value.evaluations for value in history]
            runs[solver] = Run(totals, evaluations, time.process_time() - start)
        best = max(max(run.totals) for run in runs.values())
        cells = [shown(run, best) for run in runs.values()]
        table.add_row(kernel.__name__, str(depth), f"{nu:g}", *cells)
    Console(width=120).print(table)


def data(points: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(points, 4, dtype=torch.float64, generator=generator)
    y = torch.stack([x[:, i].sin() + x[:, i + 1] * x[:, i + 2] for i in range(2)], 1)
    return x, y + 0.1 * torch.randn(y.shape, dtype=torch.float64, generator=generator)


def shown(run: Run, best: float) -> str:
    """What a run took until it was close to the best, or how far it was at its end."""
    for index, total in enumerate(run.totals):
        if total > best - CLOSE:
            seconds = run.seconds * run.evaluations[index] / run.evaluations[-1]
            return f"{index}, {run.evaluations[index]}, {seconds:.1f}"
    left = best - max(run.totals)
    return f">{len(run.totals) - 1}, {run.evaluations[-1]}, {run.seconds:.1f} ({left:.0e} left)"


if __name__ == "__main__":
    main()

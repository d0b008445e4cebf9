"""How fast deep Gaussian processes of finite width tend to a deep kernel machine.

    python benchmarks/finite_width.py

For every N: layers of N·ν features and targets repeated N times; the relative distance of the
posterior's mode from the machine's optimum, largest over the layers, and N times that; and the
difference of the log joint, divided by N and without its constant, from the machine's objective, at
the optimum. The last two columns are of layers as wide with targets that are not repeated: the
distance of the mode from the recursive kernel (the NNGP), and N times that.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from convdkm.exact import FiniteWidthDGP, FullRankDKM
from convdkm.kernels import KERNELS


def distance(grams: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    pairs = zip(grams, others, strict=True)
    return max(float((gram - other).norm() / other.norm()) for gram, other in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=6, help="number of points P")
    parser.add_argument("--depth", type=int, default=2, help="number of layers L")
    parser.add_argument("--nu", type=float, default=1.0, help="features a layer for each copy")
    parser.add_argument("--noise", type=float, default=0.1, help="variance of the noise")
    parser.add_argument("--kernel", choices=list(KERNELS), default="arc-cosine", help="not learned")
    parser.add_argument(
        "--copies", type=int, nargs="+", default=[20, 80, 320, 1280, 5120, 20480], help="N"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the data")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(arguments.seed)
    x = torch.randn(arguments.points, 3, dtype=torch.float64, generator=generator)
    y = torch.stack([x[:, 0].sin() + x[:, 1], x[:, 1] * x[:, 2]], 1)
    kernel = KERNELS.build(arguments.kernel, {}).requires_grad_(False)
    machine = FullRankDKM.from_data(
        x, y, depth=arguments.depth, nu=arguments.nu, noise=arguments.noise, kernel=kernel
    )
    machine.fit(steps=1000, tolerance=1e-13)
    optimum = [gram.detach() for gram in machine.grams()[1:]]
    objective = float(machine.objective().total.detach())
    table = Table(title=f"P = {arguments.points}, L = {arguments.depth}, ν = {arguments.nu:g}")
    for column in ("N", "mode − optimum", "· N", "joint − objective", "· N", "not repeated", "· N"):
        table.add_column(column, justify="right")
    for copies in arguments.copies:
        process = FiniteWidthDGP.from_machine(machine, copies)
        far = distance(process.mode(y), optimum)
        joint = float(process.log_joint(optimum, y).detach())
        gap = (joint - process.log_constant) / copies - objective
        single = FiniteWidthDGP(x, process.widths, kernel=kernel, noise=arguments.noise)
        lost = distance(single.mode(y), single.recursive_grams())
        figures = [figure for each in (far, gap, lost) for figure in (each, copies * each)]
        table.add_row(str(copies), *(f"{figure:.3g}" for figure in figures))
    console = Console(width=100)
    console.print(table)
    learned = distance(optimum, process.recursive_grams())
    console.print(f"The machine's optimum is {learned:.3g} from the recursive kernel.")


if __name__ == "__main__":
    main()

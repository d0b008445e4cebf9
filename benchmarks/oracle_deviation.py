"""How far every layer and kernel is from the paper's equations written out naively in NumPy.

    python benchmarks/oracle_deviation.py

For each layer, the largest deviation of any block over all tested configurations, relative to the
largest absolute value of that block, with the data path in float64 and in float32.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from oracle.cases import DTYPES, all_cases


def largest_deviations() -> dict[str, dict[torch.dtype, list[float]]]:
    """Deviations of all configurations, by row of the table and by precision."""
    rows: dict[str, dict[torch.dtype, list[float]]] = {}
    for case in all_cases():
        row = rows.setdefault(case.row, {dtype: [] for dtype in DTYPES})
        for dtype in DTYPES:
            row[dtype].append(case.deviation(dtype))
    return rows


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    rows = largest_deviations()
    table = Table(title="Largest relative deviation from the oracle")
    table.add_column("layer")
    table.add_column("configurations", justify="right")
    for dtype in DTYPES:
        table.add_column(str(dtype).removeprefix("torch."), justify="right")
    everything = {dtype: [d for row in rows.values() for d in row[dtype]] for dtype in DTYPES}
    for name, row in {**rows, "all": everything}.items():
        if name == "all":
            table.add_section()
        found = [row[dtype] for dtype in DTYPES]
        table.add_row(name, str(len(found[0])), *(f"{np.max(values):.1e}" for values in found))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()

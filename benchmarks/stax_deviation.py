"""How far NNGP and NTK are from those of neural-tangents, network by network.

    python benchmarks/stax_deviation.py

Over the networks of tests/golden/stax.npz (made by scripts/make_golden_stax.sh): the largest
deviation in float64, relative to the largest entry of the kernel, between different images and of
images with themselves. neural-tangents has the NTK of an image with itself from the root of a
difference of equal numbers where there is a ReLU, and so to 1e-9 only.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from oracle.stax import NETWORKS, Network


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    table = Table(title="Largest relative deviation from neural-tangents, float64")
    table.add_column("network")
    for kind in ("NNGP", "NTK"):
        table.add_column(kind, justify="right")
        table.add_column(f"{kind} (x, x)", justify="right")
    rows = {}
    for name in NETWORKS:
        network = Network.named(name)
        rows[name] = [*network.deviations("nngp"), *network.deviations("ntk")]
    largest = [max(column) for column in zip(*rows.values(), strict=True)]
    for name, row in {**rows, "all": largest}.items():
        if name == "all":
            table.add_section()
        table.add_row(name, *(f"{value:.1e}" for value in row))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()

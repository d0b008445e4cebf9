"""``convdkm tables``: its options. What is slow to import is imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from convdkm.cli.arguments import TableFormat


def tables(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS", help="folder of a sweep or of a comparison")
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="where files are written (RUNS/tables)"
        ),
    ] = None,
    format: TableFormat = "markdown",
    curves: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV of published learning curves to draw beneath ours, with columns dataset,"
            " epochs, inducing, seed, epoch and test_acc",
        ),
    ] = None,
    figures: Annotated[
        bool,
        typer.Option("--figures/--no-figures", help="draw figures (where matplotlib is installed)"),
    ] = True,
) -> None:
    """Show the tables of a sweep beside the published.

    Mean and standard error over seeds; bold is what is not significantly worse than the best, by a
    one-tailed Welch test at 5%. Every table is written as Markdown, LaTeX, CSV and a figure.
    """
    from convdkm.cli.tabulating import show_tables

    show_tables(runs, output=output, form=format, curves=curves, figures=figures)

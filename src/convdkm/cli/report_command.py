"""The options of ``convdkm report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from convdkm.cli.arguments import CheckpointName, DataDir, Device, MovedData


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN…",
            help="folders of runs, a folder that holds some, or the folder of convdkm compare",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="the page (report.html in the folder of the run, or in the current folder where"
            " there are several)",
        ),
    ] = None,
    images: Annotated[int, typer.Option(metavar="N", help="images of each kind to show (16)")] = 16,
    data: MovedData = None,
    no_data: Annotated[
        bool, typer.Option("--no-data", help="do not predict the test images")
    ] = False,
    data_dir: DataDir = None,
    checkpoint: CheckpointName = "last",
    device: Device = None,
    force: Annotated[
        bool, typer.Option("--force", help="replace a file that is no such page")
    ] = False,
) -> None:
    """Make a page about a run, or one that compares several.

    One HTML file to look at: learning curves, calibration, confusions, images, and each layer's
    kernel beside the Gram it learned. The last line printed is the file.
    """
    from convdkm.cli.report import report_runs

    report_runs(
        runs,
        output=output,
        images=images,
        data=data,
        no_data=no_data,
        data_dir=data_dir,
        checkpoint=checkpoint,
        device=device,
        force=force,
    )

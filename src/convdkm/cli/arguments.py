"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="folder of the run")]
DataDir = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="where data sets are (the folder named by CONVDKM_DATA, or ~/.local/share/convdkm)",
    ),
]
MovedData = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="DATASET", help="where the images of the run are, if they have moved"
    ),
]
Device = Annotated[
    str | None, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1, mps, … (as in training)")
]
CheckpointName = Annotated[
    str,
    typer.Option(
        "--checkpoint", metavar="NAME", help="which checkpoint: last, best or previous (last)"
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="say nothing but warnings, and how it ended")
]
TableFormat = Annotated[
    str,
    typer.Option(
        "--format", "-f", metavar="NAME", help="to print: markdown, latex, csv or none (markdown)"
    ),
]

"""``convdkm verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|FILE…",
            help="folders of runs, files of export, or folders of kernels on disk",
        ),
    ],
) -> None:
    """Check that files are what was written.

    Prints a line for each file: ok, if its digest is right; readable, for tables and settings,
    which have none; no digest, if an older version wrote it; or damaged, and why. Ends with exit
    code 1 if a file is damaged.
    """
    from convdkm.verifying import verify as findings_of

    every = [findings_of(path) for path in paths]
    damaged = False
    for finding in (each for findings in every for each in findings):
        print(finding)
        damaged |= finding.state == "damaged"
    if damaged:
        raise typer.Exit(1)

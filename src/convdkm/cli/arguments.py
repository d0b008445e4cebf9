"""Arguments and options: how they are written, and those that several commands have."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer


def argument(metavar: str, help: str) -> Any:
    """An argument, by its place."""
    return typer.Argument(metavar=metavar, help=help)


def option(metavar: str, help: str, *names: str, group: str | None = None) -> Any:
    """An option with a value; its names are made from that of the parameter unless given.

    The help page adds the default of the parameter to the help.
    """
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=group)


def switch(names: str, help: str, *short: str) -> Any:
    """An option without a value; ``--on/--off`` names both ways."""
    return typer.Option(names, *short, help=help)


def listed(given: Iterable[str] | None) -> list[str] | None:
    """Names given one by one or with commas between."""
    if not given:
        return None
    return [part.strip() for text in given for part in text.split(",") if part.strip()]


RunFolder = Annotated[Path, argument("RUN", "folder of the run")]
RunOrMachine = Annotated[
    Path,
    argument("RUN", "folder of a run, a file of Run.save, or the name of a pretrained machine"),
]
DataDir = Annotated[
    str | None,
    option(
        "FOLDER",
        "folder of the data sets (default: $CONVDKM_DATA, or ~/.local/share/convdkm)",
    ),
]
MovedData = Annotated[
    str | None,
    option("DATASET", "where the images of the run are now, if they have moved", "--data"),
]
Device = Annotated[
    str | None, option("NAME", "cpu, cuda, cuda:1, mps, … (default: as in training)")
]
CheckpointName = Annotated[
    str, option("NAME", "checkpoint to use: last, best or previous", "--checkpoint")
]
ViewsOption = Annotated[
    str | None,
    option(
        "NAME",
        "views of every image: one, flip, shifts or crops (default: those of the run's settings, or"
        " of the file)",
        "--views",
    ),
]
Quiet = Annotated[bool, switch("--quiet", "print only warnings and the result", "-q")]
TableFormat = Annotated[
    str,
    option("NAME", "format to print: markdown, latex, csv or none", "--format", "-f"),
]

"""``convdkm data list``, ``verify`` and ``fetch``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from convdkm.cli.arguments import DataDir, argument, option, switch
from convdkm.cli.help import help_if_alone
from convdkm.cli.output import console, plain_table, say
from convdkm.data.registry import KNOWN_SETS, data_directory, find, known_set
from convdkm.errors import ConvDKMError


def data(context: typer.Context) -> None:
    """List, verify and fetch data sets."""
    help_if_alone(context)


def list_sets(data_dir: DataDir = None) -> None:
    """List the data sets known by name, and where they are."""
    rows = []
    for known in KNOWN_SETS.values():
        place = find(known.name, data_dir)
        size, shape = f"{known.train_size:,} + {known.test_size:,}", "×".join(map(str, known.shape))
        where = "embedded" if known.format == "embedded" else str(place or "not here")
        rows.append((known.name, size, shape, str(known.num_classes), where))
    columns = ("name", "images", "shape", "classes", "where")
    console().print(plain_table(*columns, rows=rows, right=("images", "classes")))
    say(f"\nData directory: {data_directory(data_dir)}")
    say("A folder with a sub-folder of images for each class, or an .npz file, works as well.")


def verify_sets(
    names: Annotated[
        list[str] | None, argument("NAME…", "data sets (default: all that are on this machine)")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Read data sets to the end, and check their contents."""
    from convdkm.data import verify

    chosen = [known_set(name) for name in names or ()] or [
        known for known in KNOWN_SETS.values() if find(known.name, data_dir) is not None
    ]
    failed = False
    for known in chosen:
        try:
            result = verify(known.name, data_dir)
        except ConvDKMError as error:
            failed = True
            say(f"{known.name}: {error}")
        else:
            sizes = f"{result.train_size:,} + {result.test_size:,} images"
            say(f"{known.name}: right, {sizes} in {result.place}")
            for note in result.notes:
                say(f"  {note}")
    if failed:
        sys.exit(1)


def fetch_sets(
    names: Annotated[list[str], argument("NAME…", "data sets to download")],
    data_dir: DataDir = None,
    mirror: Annotated[str | None, option("URL", "download from this address instead")] = None,
    *,
    force: Annotated[
        bool, switch("--force", "replace existing files that differ from the published ones")
    ] = False,
) -> None:
    """Download data sets from their official sources.

    An interrupted download continues where it stopped, and every file is checked.
    """
    from rich import progress as bars

    from convdkm.data.download import fetch

    chosen = [known_set(name) for name in names]
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console(stderr=True)) as progress:
        tasks = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = progress.add_task(file, total=total)
            progress.update(tasks[file], completed=done, total=total)

        places = [
            fetch(known.name, data_dir, progress=show, base_url=mirror, force=force)
            for known in chosen
        ]
    for known, place in zip(chosen, places, strict=True):
        say(f"{known.name}: {'embedded' if known.format == 'embedded' else place}")

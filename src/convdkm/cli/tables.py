"""``convdkm tables``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from convdkm.cli.arguments import TableFormat, argument, option, switch
from convdkm.cli.output import say, warn
from convdkm.errors import InvalidInputError


def tables(
    runs: Annotated[Path, argument("RUNS", "folder of a sweep or of a comparison")],
    *,
    output: Annotated[
        Path | None, option("FOLDER", "folder to write to (default: RUNS/tables)", "--output", "-o")
    ] = None,
    format: TableFormat = "markdown",
    curves: Annotated[
        Path | None,
        option(
            "FILE",
            "CSV of published learning curves to draw beneath ours, with columns dataset, epochs,"
            " inducing, seed, epoch and test_acc",
        ),
    ] = None,
    figures: Annotated[
        bool,
        switch("--figures/--no-figures", "draw figures, which need matplotlib"),
    ] = True,
) -> None:
    """Print the tables of a sweep, beside the published ones, or of a comparison.

    Cells are the mean and the standard error over seeds. Bold is what is not significantly worse
    than the best, by a one-tailed Welch test at 5%. Every table is written as Markdown, LaTeX, CSV
    and a figure.
    """
    from convdkm.lab.studies.rendering import check_format

    check_format(format)
    for path in write_study(runs, output=output, form=format, curves=curves, figures=figures):
        say(str(path), stderr=True)


def write_study(
    path: Path, *, output: Path | None, form: str, curves: Path | None = None, figures: bool = True
) -> list[Path]:
    """Write the tables and figures of a study, and print the tables; the files written."""
    from convdkm.lab.studies.comparison.figures import draw as draw_methods
    from convdkm.lab.studies.comparison.folder import ComparisonFolder
    from convdkm.lab.studies.comparison.results import Results as Methods
    from convdkm.lab.studies.rendering import Table, write_tables
    from convdkm.lab.studies.sweeps.figures import draw as draw_runs
    from convdkm.lab.studies.sweeps.figures import read_published
    from convdkm.lab.studies.sweeps.results import Results as Runs

    compared, drawn = ComparisonFolder.is_one(path), find_spec("matplotlib") is not None
    if curves is not None and compared:
        raise InvalidInputError("--curves belong to the tables of a sweep, not to a comparison")
    if curves is not None and not (figures and drawn):
        missing = "; pip install convdkm[figures]" if figures else ""
        raise InvalidInputError(f"--curves are drawn in figures, which are not made{missing}")
    tables: Iterable[Table]
    draw: Callable[[Path], list[Path]]
    if compared:
        methods = Methods(path)
        tables, draw = methods.tables(), partial(draw_methods, methods)
    else:
        runs = Runs(path)
        published = None if curves is None else read_published(curves)
        tables, draw = runs.tables(), partial(draw_runs, runs, published=published)
    place = output or path / "tables"
    written = write_tables(tables, place, form)
    if figures and not drawn:
        warn("figures need matplotlib: pip install convdkm[figures]")
    return [*written, *(draw(place) if figures and drawn else ())]

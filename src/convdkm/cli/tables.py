"""``convdkm tables``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from convdkm.cli.arguments import TableFormat, argument, option, switch
from convdkm.cli.output import say, warn
from convdkm.errors import InvalidInputError

if TYPE_CHECKING:
    from convdkm.lab.studies.results import Results

FORMATS = ("markdown", "latex", "csv", "none")
Formats = Mapping[str, tuple[Callable[[Any], str], str]]


def tables(
    runs: Annotated[Path, argument("RUNS", "folder of a sweep or of a comparison")],
    *,
    output: Annotated[
        Path | None,
        option("FOLDER", "folder to write to (default: RUNS/tables)", "--output", "-o"),
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
        switch("--figures/--no-figures", "draw figures, which need matplotlib (default: on)"),
    ] = True,
) -> None:
    """Print the tables of a sweep, beside the published ones, or of a comparison.

    Cells are the mean and the standard error over seeds. Bold is what is not significantly worse
    than the best, by a one-tailed Welch test at 5%. Every table is written as Markdown, LaTeX, CSV
    and a figure.
    """
    from convdkm.lab.studies.comparison.folder import ComparisonFolder
    from convdkm.lab.studies.results import Results

    check_format(format)
    if ComparisonFolder.is_one(runs):
        if curves is not None:
            raise InvalidInputError("--curves belong to the tables of a sweep, not to a comparison")
        written = write_comparison(runs, output=output, form=format, figures=figures)
    else:
        if curves is not None and not (figures and find_spec("matplotlib")):
            missing = "; pip install convdkm[figures]" if figures else ""
            raise InvalidInputError(f"--curves are drawn in figures, which are not made{missing}")
        written = _write_sweep(Results(runs), output or runs / "tables", format, curves, figures)
    for path in written:
        say(str(path), stderr=True)


def check_format(form: str) -> None:
    """Raise if tables cannot be printed in that form."""
    from convdkm.config import nearest

    if form not in FORMATS:
        raise InvalidInputError(
            f"there is no format {form!r}.{nearest(form, FORMATS)} There are {', '.join(FORMATS)}."
        )


def write_comparison(
    folder: Path, *, output: Path | None, form: str, figures: bool = True
) -> list[Path]:
    """Write the tables and figures of a comparison, and print the tables; the files written."""
    from convdkm.lab.studies.comparison.rendering import FORMATS
    from convdkm.lab.studies.comparison.results import Comparison

    comparison, place = Comparison(folder), output or folder / "tables"
    written = [
        path for table in comparison.tables() for path in _write(table, FORMATS, place, form)
    ]
    if _can_draw(figures):
        from convdkm.lab.studies.comparison.figures import draw

        written += draw(comparison, place)
    return written


def _write_sweep(
    results: Results, folder: Path, form: str, curves: Path | None, figures: bool
) -> list[Path]:
    """The same of a sweep."""
    from convdkm.lab.studies.rendering import FORMATS

    published = None
    if curves is not None:
        from convdkm.lab.studies.figures.curves import read_published

        published = read_published(curves)
    written: list[Path] = []
    figures = _can_draw(figures)
    for table in results.tables():
        written += _write(table, FORMATS, folder, form)
        if figures:
            from convdkm.lab.studies.figures import draw

            written += draw(table, results, folder, published)
    return written


def _can_draw(wanted: bool) -> bool:
    """Whether figures are drawn; a warning where they are wanted and cannot be."""
    if wanted and find_spec("matplotlib") is None:
        warn("figures need matplotlib: pip install convdkm[figures]")
        return False
    return wanted


def _write(table: Any, formats: Formats, folder: Path, form: str) -> list[Path]:
    """Write a table in every format, and print it in one; the files written."""
    from convdkm.storage.files import write_text

    written = []
    for name, (render, ending) in formats.items():
        path = folder / f"{table.name}.{ending}"
        text = render(table)
        write_text(path, text)
        written.append(path)
        if name == form:
            print(text)
    return written

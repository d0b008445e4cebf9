"""``convdkm tables``: the files, and what is printed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from convdkm.cli.output import say, warn
from convdkm.errors import InvalidInputError
from convdkm.lab.studies.comparison.folder import ComparisonFolder
from convdkm.lab.studies.rendering.comma import comma_separated
from convdkm.lab.studies.rendering.latex import latex
from convdkm.lab.studies.rendering.markdown import markdown
from convdkm.lab.studies.results import Results
from convdkm.options import nearest
from convdkm.storage.files import write_text

FORMATS = {"markdown": (markdown, "md"), "latex": (latex, "tex"), "csv": (comma_separated, "csv")}
NOTHING = "none"


def check_format(form: str) -> None:
    """Raise if tables cannot be printed in that form."""
    known = (*FORMATS, NOTHING)
    if form not in known:
        raise InvalidInputError(
            f"there is no format {form!r}.{nearest(form, known)} There are {', '.join(known)}."
        )


def show_tables(
    runs: Path, *, output: Path | None, form: str, curves: Path | None, figures: bool
) -> None:
    """Write every table of a sweep in every format, and print one; the files on standard error.

    The folder of a comparison is taken too.
    """
    check_format(form)
    if ComparisonFolder.is_one(runs):
        if curves is not None:
            raise InvalidInputError("--curves belong to the tables of a sweep, not to a comparison")
        for path in write_comparison(runs, output=output, form=form, figures=figures):
            say(str(path), stderr=True)
        return
    drawn = find_spec("matplotlib") is not None
    if curves is not None and not (figures and drawn):
        missing = "" if drawn else "; pip install convdkm[figures]"
        raise InvalidInputError(f"--curves are drawn in figures, which are not made{missing}")
    results = Results(runs)
    folder = output or runs / "tables"
    published = None
    if curves is not None:
        from convdkm.lab.studies.figures.curves import read_published

        published = read_published(curves)
    written: list[Path] = []
    for table in results.tables():
        for name, (render, ending) in FORMATS.items():
            path = folder / f"{table.name}.{ending}"
            text = render(table)
            write_text(path, text)
            written.append(path)
            if name == form:
                print(text)
        if figures and drawn:
            from convdkm.lab.studies.figures import draw

            written += draw(table, results, folder, published)
    if figures and not drawn:
        warn("figures need matplotlib: pip install convdkm[figures]")
    for path in written:
        say(str(path), stderr=True)


def write_comparison(
    folder: Path, *, output: Path | None, form: str, figures: bool = True
) -> list[Path]:
    """Write the tables and figures of a comparison, and print the tables; the files written."""
    from convdkm.lab.studies.comparison.rendering import FORMATS as RENDERED
    from convdkm.lab.studies.comparison.results import Comparison

    comparison = Comparison(folder)
    place = output or folder / "tables"
    written: list[Path] = []
    for table in comparison.tables():
        for name, (render, ending) in RENDERED.items():
            text = render(table)
            write_text(place / f"{table.name}.{ending}", text)
            written.append(place / f"{table.name}.{ending}")
            if name == form:
                print(text)
    if figures and find_spec("matplotlib") is None:
        warn("figures need matplotlib: pip install convdkm[figures]")
    elif figures:
        from convdkm.lab.studies.comparison.figures import draw

        written += draw(comparison, place)
    return written

"""``convdkm tables``: the files, and what is printed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from convdkm.cli.output import warn
from convdkm.config import nearest
from convdkm.errors import InvalidInputError
from convdkm.experiments.rendering.comma import comma_separated
from convdkm.experiments.rendering.latex import latex
from convdkm.experiments.rendering.markdown import markdown
from convdkm.experiments.results import Results
from convdkm.files import write_text

FORMATS = {"markdown": (markdown, "md"), "latex": (latex, "tex"), "csv": (comma_separated, "csv")}
NOTHING = "none"


def show_tables(
    runs: Path, *, output: Path | None, form: str, curves: Path | None, figures: bool
) -> None:
    """Write every table of a sweep in every format, and print one; the files on standard error."""
    known = (*FORMATS, NOTHING)
    if form not in known:
        raise InvalidInputError(
            f"there is no format {form!r}.{nearest(form, known)} There are {', '.join(known)}."
        )
    drawn = find_spec("matplotlib") is not None
    if curves is not None and not (figures and drawn):
        missing = "" if drawn else "; pip install convdkm[figures]"
        raise InvalidInputError(f"--curves are drawn in figures, which are not made{missing}")
    results = Results(runs)
    folder = output or runs / "tables"
    published = None
    if curves is not None:
        from convdkm.experiments.figures.curves import read_published

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
            from convdkm.experiments.figures import draw

            written += draw(table, results, folder, published)
    if figures and not drawn:
        warn("figures need matplotlib: pip install convdkm[figures]")
    for path in written:
        print(path, file=sys.stderr)

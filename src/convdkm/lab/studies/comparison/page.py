"""The page of a comparison of methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from convdkm.lab.studies.comparison.figures import Curve, curves
from convdkm.lab.studies.comparison.results import Results, SizeTable
from convdkm.lab.studies.folder import counted
from convdkm.lab.studies.rendering import Figure
from convdkm.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    STYLES,
    TOP,
    WIDTH,
    Series,
    drawing,
    figure,
    grid,
    keys,
    line_chart,
    mark,
)
from convdkm.report.markup import Markup, element
from convdkm.report.page import Section, columns, page, table
from convdkm.report.rows import Marks, dot_rows
from convdkm.report.scale import axis_for, percent, short
from convdkm.report.write import PAGE, require_free
from convdkm.storage.files import write_text
from convdkm.training.view import format_duration


def methods_page(results: Results) -> str:
    """The page of all methods, sizes and seeds of a comparison."""
    tables = results.tables()
    sections = [
        *(_table(each, explained=each is tables[0]) for each in tables),
        _charts(curves(tables), tables),
        _published(tables),
        _said(results),
    ]
    methods, trials = len(results.record.plan), len(results.results)
    subtitle = f"{counted(methods, 'method')}, {counted(trials, 'trial')}. {tables[0].lead[1]}"
    notes = [
        f"{each.size:,} training images: {note}"
        for each in tables
        for note in each.notes
        if note.startswith("Not finished")
    ]
    return page(results.title, subtitle, sections, notes=notes)


def _table(found: SizeTable, *, explained: bool) -> Section:
    grid = found.grid
    rows = [[row[0], *map(_cell, row[1:])] for row in grid.rows]
    notes = [note for note in found.notes if not note.startswith(("Not finished", "Published"))]
    below = element("ul", [element("li", note) for note in notes], class_="brief")
    return Section(
        found.name,
        f"{found.size:,} training images",
        found.legend.replace("Bold", "Marked") if explained else None,
        [table(grid.head, rows), below if notes else None],
    )


def _cell(cell: str | Figure) -> object:
    if isinstance(cell, str):
        return cell
    return [element("b", cell.text) if cell.bold else cell.text, cell.after]


def _charts(found: Sequence[Curve], tables: Sequence[SizeTable]) -> Section | None:
    if not found:
        return None
    # As many methods at a time as lines and marks can tell apart, the first in all of them.
    rest, room = found[1:], STYLES - 1
    parts = [[found[0], *rest[start : start + room]] for start in range(0, len(rest) or 1, room)]
    charts: list[Markup | None] = [_by_method(found, tables)]
    for index, part in enumerate(parts, 1):
        end = f" ({index} of {len(parts)})" if len(parts) > 1 else ""
        charts += [_by_size(part, end), _by_time(part, end)]
    lead = "Every chart has the first method, for comparison." if len(parts) > 1 else None
    return Section("charts", "Accuracy, training images and time", lead, [columns(*charts)])


def _by_method(found: Sequence[Curve], tables: Sequence[SizeTable]) -> Markup:
    marks = []
    for style, size in enumerate(each.size for each in tables):
        known = [dict(zip(curve.sizes, curve.accuracies, strict=True)).get(size) for curve in found]
        values = [None if each is None else each.mean / 100 for each in known]
        marks.append(Marks(f"{size:,} images", values, style))
    return dot_rows(
        "Accuracy of the test images",
        [curve.row.method.name for curve in found],
        marks,
        label="accuracy",
        form=percent,
        bounds=(None, None),
    )


def _by_size(part: Sequence[Curve], end: str) -> Markup | None:
    if not any(len(curve.sizes) > 1 for curve in part):
        return None
    series = []
    for style, curve in enumerate(part):
        middle, low, high = (
            [(each.mean + sign * (each.error or 0.0)) / 100 for each in curve.accuracies]
            for sign in (0, -1, 1)
        )
        series.append(Series(curve.row.label, curve.sizes, middle, style, (low, high)))
    return line_chart(
        f"By training images{end}",
        series,
        x_label="training images",
        y_label="accuracy; bands: one standard error",
        log=False,
        y_format=percent,
    )


def _by_time(part: Sequence[Curve], end: str) -> Markup:
    title = f"By seconds to fit{end}"
    points = [
        (style, f"{curve.row.label}, {size:,} images", seconds, each.mean / 100)
        for style, curve in enumerate(part)
        for size, seconds, each in zip(curve.sizes, curve.seconds, curve.accuracies, strict=True)
    ]
    x_axis = axis_for([x for _, _, x, _ in points], LEFT, WIDTH - RIGHT, log=None)
    y_axis = axis_for([y for _, _, _, y in points], HEIGHT - BOTTOM, TOP)
    marks = [
        mark(x_axis(x), y_axis(y), style, hint=f"{name}: {percent(y)} in {format_duration(x)}")
        for style, name, x, y in points
    ]
    label = "seconds, log scale" if x_axis.log else "seconds"
    svg = drawing(
        title,
        WIDTH,
        HEIGHT,
        grid(x_axis, y_axis, forms=(short, percent), labels=(label, "accuracy")),
        marks,
    )
    legend = keys([(mark(7, 6, k, size=4.5), curve.row.label) for k, curve in enumerate(part)])
    return figure(title, svg, below=legend)


def _published(tables: Sequence[SizeTable]) -> Section | None:
    rows = {
        (row.label, f"{claim.accuracy.mean:g}%", claim.label, claim.source): None
        for each in tables
        for row in each.rows
        for claim in row.published
    }
    if not rows:
        return None
    lead = (
        "As the paper's Table 3 gives them: for all 50,000 training images, at the scale and with"
        " the settings of their papers. They are not to be expected of the trials on this page."
    )
    shown = table(["method", "accuracy", "there", "source"], list(rows), css="text")
    return Section("published", "Published on CIFAR-10", lead, [shown])


def _said(results: Results) -> Section | None:
    """What methods said in the first seed that is there."""
    rows: dict[tuple[str, int], list[object]] = {}
    for trial, each in results.results.items():
        place = trial.method, trial.size
        if place not in rows and (each.notes or each.error):
            text = each.error or "; ".join(each.notes)
            rows[place] = [trial.method, f"{trial.size:,}", str(trial.seed), text]
    if not rows:
        return None
    lead = (
        "The last line of each kind that a method told, or why it failed; the rest is in its log."
    )
    shown = table(["method", "images", "seed", ""], list(rows.values()), css="text wrap")
    return Section("said", "What the methods said", lead, [shown])


def write_methods_page(path: Path, output: Path | None = None, *, force: bool = False) -> Path:
    """Write the page of the comparison in the folder ``path``, by default there; the file.

    ``force`` replaces a file that is no such page.
    """
    file = output or path / PAGE
    require_free(file, force=force)
    write_text(file, methods_page(Results(path)))
    return file

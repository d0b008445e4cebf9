"""Charts with a row for each layer: stacked bars, and dots joined by a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from convdkm.report.charts import WIDTH, Format, area, drawing, figure, keys, mark, style_class
from convdkm.report.markup import Markup, svg_line, svg_rect, svg_text
from convdkm.report.scale import Axis, axis_for, fitted, short

ROW, TOP, BOTTOM = 24.0, 6.0, 40.0
MOST_LETTERS = 26
"""Of a name that is written out."""
LETTER = 7.0
"""About the width of a letter."""


@dataclass(frozen=True)
class Marks:
    """One number for each row; None where there is none."""

    label: str
    values: Sequence[float | None]
    style: int = 0


def bar_rows(
    title: str, names: Sequence[str], parts: Sequence[Marks], *, label: str, form: Format = short
) -> Markup:
    """Bars made of parts that add up."""
    totals = [sum(part.values[row] or 0.0 for part in parts) for row in range(len(names))]
    axis = axis_for([0.0, *totals], _left(names), WIDTH - 14, low=0.0)
    bars = []
    for row, name in enumerate(names):
        at, y = 0.0, TOP + row * ROW + 4
        for part in parts:
            value = part.values[row] or 0.0
            start, end = axis(at), axis(at + value)
            at += value
            if end > start:
                hint = f"{name}, {part.label}: {form(value)}"
                css = f"fill {style_class(part.style)}"
                bars.append(svg_rect(start, y, end - start, ROW - 8, css, hint=hint))
    entries = [(area(part.style), part.label) for part in parts]
    return _rows(title, names, axis, bars, entries, label=label, form=form)


def dot_rows(
    title: str,
    names: Sequence[str],
    marks: Sequence[Marks],
    *,
    label: str,
    form: Format = short,
    joined: bool = True,
    bounds: tuple[float | None, float | None] = (0.0, None),
) -> Markup:
    """Dots; those of a row joined by a line where they are two states of the same thing."""
    values = [value for each in marks for value in each.values if value is not None]
    axis = axis_for(values, _left(names), WIDTH - 14, low=bounds[0], high=bounds[1])
    drawn = []
    for row, name in enumerate(names):
        y = TOP + (row + 0.5) * ROW
        dots = [
            (axis(value), each, value)
            for each in marks
            if (value := each.values[row]) is not None and math.isfinite(value)
        ]
        if joined and dots[1:]:
            places = [x for x, _, _ in dots]
            drawn.append(svg_line(min(places), y, max(places), y, "joint"))
        drawn += [
            mark(x, y, each.style, said=f"{name}, {each.label}: {form(value)}")
            for x, each, value in dots
        ]
    entries = [(mark(7, 6, each.style, size=4.5), each.label) for each in marks]
    return _rows(title, names, axis, drawn, entries, label=label, form=form)


def _left(names: Sequence[str]) -> float:
    longest = max((len(name) for name in names), default=0)
    return min(longest, MOST_LETTERS) * LETTER + 12


def _rows(
    title: str,
    names: Sequence[str],
    axis: Axis,
    marks: Sequence[Markup],
    entries: Sequence[tuple[Markup, str]],
    *,
    label: str,
    form: Format,
) -> Markup:
    """Marks over a common axis beside the names of their rows, above a legend if it has several."""
    bottom = TOP + len(names) * ROW
    lines = [(axis(value), form(value)) for value in axis.ticks(4)]
    places = [TOP + (row + 0.5) * ROW + 4 for row in range(len(names))]
    svg = drawing(
        title,
        WIDTH,
        bottom + BOTTOM,
        [(svg_line(x, TOP, x, bottom, "grid"), svg_text(at, x, bottom + 15)) for x, at in lines],
        [
            svg_text(fitted(name, MOST_LETTERS), axis.start - 8, y, "end", class_="name")
            for name, y in zip(names, places, strict=True)
        ],
        marks,
        svg_text(label, (axis.start + axis.end) / 2, bottom + 34),
    )
    return figure(title, svg, below=keys(entries) if entries[1:] else None)

"""Charts with a row for each layer: stacked bars, and dots joined by a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from convdkm.report.charts import WIDTH, Format, area, drawing, figure, keys, mark, style_class
from convdkm.report.markup import Markup, element, together
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
    left = _left(names)
    axis = axis_for([0.0, *totals], left, WIDTH - 14, low=0.0)
    bars = []
    for row, name in enumerate(names):
        at = 0.0
        for part in parts:
            value = part.values[row] or 0.0
            start, end = axis(at), axis(at + value)
            at += value
            if end > start:
                bars.append(
                    element(
                        "rect",
                        element("title", f"{name}, {part.label}: {form(value)}"),
                        x=start,
                        y=TOP + row * ROW + 4,
                        width=end - start,
                        height=ROW - 8,
                        rx=2,
                        class_=f"fill {style_class(part.style)}",
                    )
                )
    below = (
        keys([(area(style_class(part.style)), part.label) for part in parts]) if parts[1:] else None
    )
    return figure(title, _rows(title, names, axis, bars, label=label, form=form), below=below)


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
    values = [value for each in marks for value in each.values if _there(value)]
    axis = axis_for(
        [float(v or 0) for v in values], _left(names), WIDTH - 14, low=bounds[0], high=bounds[1]
    )
    drawn = []
    for row, name in enumerate(names):
        y = TOP + (row + 0.5) * ROW
        own = [(each, value) for each in marks if _there(value := each.values[row])]
        places = [axis(float(value or 0)) for _, value in own]
        if joined and places[1:]:
            drawn.append(
                element("line", x1=min(places), x2=max(places), y1=y, y2=y, class_="joint")
            )
        for (each, value), x in zip(own, places, strict=True):
            said = f"{name}, {each.label}: {form(float(value or 0))}"
            drawn.append(mark(x, y, each.style, said=said))
    below = (
        keys([(mark(7, 6, each.style, size=4.5), each.label) for each in marks])
        if marks[1:]
        else None
    )
    return figure(title, _rows(title, names, axis, drawn, label=label, form=form), below=below)


def _there(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _left(names: Sequence[str]) -> float:
    longest = max((len(name) for name in names), default=0)
    return min(longest, MOST_LETTERS) * LETTER + 12


def _rows(
    title: str,
    names: Sequence[str],
    axis: Axis,
    marks: Sequence[Markup],
    *,
    label: str,
    form: Format,
) -> Markup:
    bottom = TOP + len(names) * ROW
    return drawing(
        title,
        WIDTH,
        bottom + BOTTOM,
        [
            (
                element("line", x1=axis(v), x2=axis(v), y1=TOP, y2=bottom, class_="grid"),
                element("text", form(v), x=axis(v), y=bottom + 15, text_anchor="middle"),
            )
            for v in axis.ticks(4)
        ],
        [
            element(
                "text",
                fitted(name, MOST_LETTERS),
                x=axis.start - 8,
                y=TOP + (row + 0.5) * ROW + 4,
                text_anchor="end",
                class_="name",
            )
            for row, name in enumerate(names)
        ],
        together(marks),
        element("text", label, x=(axis.start + axis.end) / 2, y=bottom + 34, text_anchor="middle"),
    )

"""Charts with a row for each name: stacked bars, dots joined by a line, and coloured squares."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from convdkm.report import svg
from convdkm.report.charts import WIDTH, Format, area, drawing, figure, keys, mark, style_class
from convdkm.report.markup import Markup
from convdkm.report.scale import Axis, axis_for, fitted, short

ROW, TOP, BOTTOM = 24.0, 6.0, 40.0
MOST_LETTERS = 26
"""Of a name that is written out; fewer beside squares."""
LETTER = 7.0
"""About the width of a letter."""
SMALL = 17.0
"""Size of a square below which its name is written smaller."""


@dataclass(frozen=True)
class Marks:
    """One number for each row; None where there is none."""

    label: str
    values: Sequence[float | None]
    style: int = 0


def bar_rows(title: str, names: Sequence[str], parts: Sequence[Marks], *, label: str) -> Markup:
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
                hint = f"{name}, {part.label}: {short(value)}"
                css = f"fill {style_class(part.style)}"
                bars.append(svg.rect(start, y, end - start, ROW - 8, css, hint=hint))
    entries = [(area(part.style), part.label) for part in parts]
    return _rows(title, names, axis, bars, entries, label=label, form=short)


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
            drawn.append(svg.line(min(places), y, max(places), y, "joint"))
        drawn += [
            mark(x, y, each.style, hint=f"{name}, {each.label}: {form(value)}")
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
    texts = [(fitted(name, MOST_LETTERS), TOP + k * ROW + 16) for k, name in enumerate(names)]
    chart = drawing(
        title,
        WIDTH,
        bottom + BOTTOM,
        [(svg.line(x, TOP, x, bottom, "grid"), svg.text(at, x, bottom + 15)) for x, at in lines],
        [svg.text(text, axis.start - 8, y, "end", class_="name") for text, y in texts],
        marks,
        svg.text(label, (axis.start + axis.end) / 2, bottom + 34),
    )
    return figure(title, chart, below=keys(entries) if entries[1:] else None)


def heat_map(
    title: str,
    names: Sequence[str],
    shades: Sequence[Sequence[float]],
    *,
    text: Callable[[int, int], str],
    hint: Callable[[int, int], str],
    labels: tuple[str, str] = ("", ""),
    css: Callable[[int, int], str] = lambda i, j: "fill s0",
) -> Markup:
    """A square table whose rows and columns have the same names, and whose cells are coloured.

    Shades are from 0 for no colour to 1 for all of it. Given row and column, ``text`` returns what
    stands in a cell, ``hint`` what is shown while the pointer is on it, and ``css`` its classes.
    """
    names = [fitted(name, MOST_LETTERS - 4) for name in names]
    longest = max(map(len, names)) * LETTER
    edge = min(longest + 10, WIDTH * 0.4)
    left, top = edge + (16 if labels[0] else 0), 20.0 if labels[1] else 4.0
    size = (WIDTH - left - 4) / len(names)
    bottom = top + len(names) * size
    turned, tight = longest > size, size < SMALL
    angle, drop = (90, 0.9) if tight else (45, 0.72)
    small = f"font-size:{0.86 * size:.1f}px" if tight else None
    drawn = []
    for i, row in enumerate(shades):
        y = top + i * size
        for j, given in enumerate(row):
            x, shade = left + j * size, min(max(given, 0.0), 1.0) if math.isfinite(given) else 0.0
            ink = "cell light" if shade > 0.65 else "cell"
            opacity, said, side = f"{shade:.3f}", hint(i, j), size - 1
            drawn += [
                svg.rect(x, y, side, side, css(i, j), hint=said, fill_opacity=opacity),
                svg.text(text(i, j), x + size / 2, y + size / 2 + 4, class_=ink),
            ]
    for k, name in enumerate(names):
        x, y = left + (k + 0.5) * size, top + (k + 0.5) * size
        turn = f"rotate(-{angle} {x:.1f} {bottom + 10:.1f})" if turned else None
        anchor = "end" if turned else "middle"
        drawn += [
            svg.text(name, left - 6, y + 4, "end", style=small),
            svg.text(name, x, bottom + 14, anchor, transform=turn, style=small),
        ]
    if any(labels):
        middle = (top + bottom) / 2
        drawn += [
            svg.text(labels[1], (left + WIDTH) / 2, 12),
            svg.text(labels[0], 12, middle, transform=f"rotate(-90 12 {middle:g})"),
        ]
    height = bottom + (edge * drop + 12 if turned else 22)
    return figure(title, drawing(title, WIDTH, height, drawn), css="chart square")

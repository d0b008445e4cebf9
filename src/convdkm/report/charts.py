"""Charts as inline SVG: colours come from the page's style, so that they follow its scheme."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from convdkm.report import svg
from convdkm.report.markup import Markup, element, together
from convdkm.report.scale import Axis, axis_for, percent, short

WIDTH, HEIGHT = 420.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 24.0, 40.0
STYLES = 8
"""Colours and dashes that the style sheet knows; more lines than that use them again."""
MOST_MARKS = 40
"""Points of a line up to which each is marked."""

Format = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """One line of a chart, and perhaps the lower and upper bounds of a shaded band.

    Points that are not finite are left out. The style is the index of its colour and dash.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: int = 0
    band: tuple[Sequence[float], Sequence[float]] | None = None


def style_class(style: int) -> str:
    """The class of the style sheet that has a colour and a dash."""
    return f"s{style % STYLES}"


def figure(title: str, drawing: Markup, *, below: object = None, css: str = "chart") -> Markup:
    """A drawing under its title."""
    return element("figure", element("figcaption", title), drawing, below, class_=css)


def drawing(title: str, width: float, height: float, *parts: object) -> Markup:
    """An SVG that is as wide as its place, and has a name for those who do not see it."""
    box = f"0 0 {width:g} {height:g}"
    return element("svg", element("title", title), parts, viewBox=box, role="img", aria_label=title)


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    log: bool | None = None,
    y_format: Format = short,
    low: float | None = None,
    shares: bool = False,
    height: float = HEIGHT,
) -> Markup:
    """Lines over a common axis, with a legend where there are several.

    Args:
        title, x_label, y_label: the caption of the chart, and the labels of its axes.
        series: the lines.
        log: whether the y axis is logarithmic; None decides from the values.
        y_format: how values are written.
        low: where the y axis begins, if not at the smallest value.
        shares: both axes go from 0 to 100%, and a dashed line shows where they are equal;
            otherwise, x is marked at whole numbers.
        height: the height of the chart.
    """
    if shares:
        x_axis, y_axis = Axis(0, 1, LEFT, WIDTH - RIGHT), Axis(0, 1, height - BOTTOM, TOP)
        y_format = percent
    else:
        xs, ys = ([value for each in series for value in getattr(each, axis)] for axis in "xy")
        x_axis = axis_for(xs, LEFT, WIDTH - RIGHT)
        y_axis = axis_for(ys, height - BOTTOM, TOP, log=log, low=low)
    x_format: Format = percent if shares else short
    labels = x_label, f"{y_label}, log scale" if y_axis.log else y_label
    chart = drawing(
        title,
        WIDTH,
        height,
        grid(x_axis, y_axis, forms=(x_format, y_format), labels=labels, whole=not shares),
        diagonal(x_axis, y_axis) if shares else None,
        [_band(each, x_axis, y_axis) for each in series],
        [_line(each, x_axis, y_axis, x_format, y_format) for each in series],
    )
    lines = [
        (svg.line(0, 6, 28, 6, f"line {style_class(each.style)}"), each.label) for each in series
    ]
    return figure(title, chart, below=keys(lines, width=28) if len(series) > 1 else None)


def grid(
    x_axis: Axis,
    y_axis: Axis,
    *,
    forms: tuple[Format, Format],
    labels: tuple[str, str],
    whole: bool = False,
) -> Markup:
    """Lines and labels of two axes; x may be marked at whole numbers only."""
    left, right = x_axis.start, x_axis.end
    low, high = y_axis.start, y_axis.end
    drawn = []
    for value in y_axis.ticks():
        y, text = y_axis(value), forms[1](value)
        drawn += [svg.line(left, y, right, y, "grid"), svg.text(text, left - 6, y + 4, "end")]
    for value in x_axis.ticks(whole=whole):
        x, text = x_axis(value), forms[0](value)
        drawn += [svg.line(x, low, x, low + 4, "axis"), svg.text(text, x, low + 17)]
    return together(
        drawn,
        svg.line(left, low, right, low, "axis"),
        svg.text(labels[0], (left + right) / 2, low + 34),
        svg.text(labels[1], 2, high - 11, None),
    )


def diagonal(x_axis: Axis, y_axis: Axis) -> Markup:
    """The dashed line where confidence equals accuracy."""
    hint = "where confidence equals accuracy"
    return svg.line(x_axis(0), y_axis(0), x_axis(1), y_axis(1), "ideal", hint=hint)


def mark(x: float, y: float, style: int, *, size: float = 5.0, hint: str | None = None) -> Markup:
    """A dot, square, diamond or triangle, full or hollow, so that marks differ without colour."""
    css = f"{'hollow' if style % 2 else 'dot'} {style_class(style)}"
    half = size * 0.9
    corners = (
        (),
        ((-half, -half), (half, -half), (half, half), (-half, half)),
        ((0, -1.2 * size), (1.2 * size, 0), (0, 1.2 * size), (-1.2 * size, 0)),
        ((0, -1.1 * size), (1.1 * size, 0.8 * size), (-1.1 * size, 0.8 * size)),
    )[style // 2 % 4]
    if not corners:
        return svg.circle(x, y, size, css, hint=hint)
    return svg.path("polygon", [(x + dx, y + dy) for dx, dy in corners], css, hint=hint)


def keys(entries: Sequence[tuple[Markup, str]], *, width: int = 14) -> Markup:
    """A legend: small drawings, each beside what it stands for."""
    css, box = "key" if width == 14 else None, f"0 0 {width} 12"
    rows = []
    for drawn, label in entries:
        key = element("svg", drawn, viewBox=box, aria_hidden="true", class_=css)
        rows.append(element("li", key, label))
    return element("ul", rows, class_="legend")


def area(style: int) -> Markup:
    """A small area, for a legend."""
    return svg.rect(1, 1, 12, 10, f"fill {style_class(style)}")


def _line(series: Series, x_axis: Axis, y_axis: Axis, x_format: Format, y_format: Format) -> Markup:
    css = style_class(series.style)
    points = [
        (x, y)
        for x, y in zip(series.x, series.y, strict=True)
        if math.isfinite(x) and math.isfinite(y) and (y > 0 or not y_axis.log)
    ]
    places = [(x_axis(x), y_axis(y)) for x, y in points]
    radius, dot = (2.6, f"dot {css}") if len(points) <= MOST_MARKS else (5, "feel")
    dots = [
        svg.circle(*place, radius, dot, hint=f"{series.label}: {y_format(y)} at {x_format(x)}")
        for place, (x, y) in zip(places, points, strict=True)
    ]
    return together(svg.path("polyline", places, f"line {css}") if points else None, dots)


def _band(series: Series, x_axis: Axis, y_axis: Axis) -> Markup | None:
    if series.band is None:
        return None
    lower, upper = (
        [(x_axis(x), y_axis(y)) for x, y in zip(series.x, bound, strict=True)]
        for bound in series.band
    )
    return svg.path("polygon", [*upper, *reversed(lower)], f"band {style_class(series.style)}")

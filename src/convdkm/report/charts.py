"""Charts as inline SVG: colours come from the page's style, so that they follow its scheme."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from convdkm.report.markup import Markup, element, together
from convdkm.report.scale import Axis, axis_for, short

WIDTH, HEIGHT = 420.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 24.0, 40.0
STYLES = 8
"""Colours and dashes that the style sheet knows; more lines than that use them again."""
MOST_MARKS = 40
"""Points of a line up to which each is marked."""

Format = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        label: in the legend.
        x, y: its points; those that are not finite are left out.
        style: number of its colour and dash.
        band: lower and upper bounds of a shaded region, if any.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: int = 0
    band: tuple[Sequence[float], Sequence[float]] | None = None

    @property
    def css(self) -> str:
        """The class of the style sheet."""
        return style_class(self.style)


def style_class(style: int) -> str:
    """The class of the style sheet that has a colour and a dash."""
    return f"s{style % STYLES}"


def figure(title: str, drawing: Markup, *, below: object = None, css: str = "chart") -> Markup:
    """A drawing under its title."""
    return element("figure", element("figcaption", title), drawing, below, class_=css)


def drawing(title: str, width: float, height: float, *parts: object) -> Markup:
    """An SVG that is as wide as its place, and has a name for those who do not see it."""
    return element(
        "svg",
        element("title", title),
        parts,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=title,
    )


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    log: bool | None = None,
    y_format: Format = short,
    x_format: Format = short,
    x_bounds: tuple[float | None, float | None] = (None, None),
    y_bounds: tuple[float | None, float | None] = (None, None),
    extra: Callable[[Axis, Axis], object] | None = None,
    height: float = HEIGHT,
) -> Markup:
    """Lines over a common axis, with a legend where there are several.

    Args:
        title: over the chart.
        series: the lines.
        x_label, y_label: of the axes.
        log: whether y is by logarithms; None to decide from the values.
        y_format, x_format: how values are written; x is marked at whole numbers, unless it has
            a format of its own.
        x_bounds, y_bounds: ends of the axes; from the values where None.
        extra: more to draw, given both axes.
        height: of the chart, where its width is 420.
    """
    x_axis = axis_for(
        (x for each in series for x in each.x),
        LEFT,
        WIDTH - RIGHT,
        low=x_bounds[0],
        high=x_bounds[1],
    )
    y_axis = axis_for(
        (y for each in series for y in each.y),
        height - BOTTOM,
        TOP,
        log=log,
        low=y_bounds[0],
        high=y_bounds[1],
    )
    label = f"{y_label}, log scale" if y_axis.log else y_label
    svg = drawing(
        title,
        WIDTH,
        height,
        grid(
            x_axis,
            y_axis,
            forms=(x_format, y_format),
            labels=(x_label, label),
            whole=x_format is short,
        ),
        None if extra is None else extra(x_axis, y_axis),
        [_band(each, x_axis, y_axis) for each in series],
        [_line(each, x_axis, y_axis, x_format, y_format) for each in series],
    )
    return figure(title, svg, below=legend(series) if len(series) > 1 else None)


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
    return together(
        [
            (
                element("line", x1=left, x2=right, y1=y_axis(v), y2=y_axis(v), class_="grid"),
                element("text", forms[1](v), x=left - 6, y=y_axis(v) + 4, text_anchor="end"),
            )
            for v in y_axis.ticks()
        ],
        [
            (
                element("line", x1=x_axis(v), x2=x_axis(v), y1=low, y2=low + 4, class_="axis"),
                element("text", forms[0](v), x=x_axis(v), y=low + 17, text_anchor="middle"),
            )
            for v in x_axis.ticks(whole=whole)
        ],
        element("line", x1=left, x2=right, y1=low, y2=low, class_="axis"),
        element("text", labels[0], x=(left + right) / 2, y=low + 34, text_anchor="middle"),
        element("text", labels[1], x=2, y=high - 11),
    )


def legend(series: Sequence[Series]) -> Markup:
    """What the lines are, each beside a piece of it."""
    return element(
        "ul",
        [
            element(
                "li",
                element(
                    "svg",
                    element("line", x1=0, x2=28, y1=6, y2=6, class_=f"line {each.css}"),
                    viewBox="0 0 28 12",
                    aria_hidden="true",
                ),
                each.label,
            )
            for each in series
        ],
        class_="legend",
    )


def mark(x: float, y: float, style: int, *, size: float = 5.0, said: str | None = None) -> Markup:
    """A dot, square, diamond or triangle, full or hollow, so that marks differ without colour."""
    css = f"{'hollow' if style % 2 else 'dot'} {style_class(style)}"
    title = None if said is None else element("title", said)
    half = size * 0.9
    corners = (
        (),
        ((-half, -half), (half, -half), (half, half), (-half, half)),
        ((0, -1.2 * size), (1.2 * size, 0), (0, 1.2 * size), (-1.2 * size, 0)),
        ((0, -1.1 * size), (1.1 * size, 0.8 * size), (-1.1 * size, 0.8 * size)),
    )[style // 2 % 4]
    if not corners:
        return element("circle", title, cx=x, cy=y, r=size, class_=css)
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return element("polygon", title, points=points, class_=css)


def keys(entries: Sequence[tuple[Markup, str]]) -> Markup:
    """A legend of areas and marks: a small drawing, and what it stands for."""
    return element(
        "ul",
        [
            element(
                "li",
                element(
                    "svg",
                    drawn,
                    viewBox="0 0 14 12",
                    aria_hidden="true",
                    class_="key",
                ),
                label,
            )
            for drawn, label in entries
        ],
        class_="legend",
    )


def area(css: str) -> Markup:
    """A small area, for a legend."""
    return element("rect", x=1, y=1, width=12, height=10, rx=2, class_=f"fill {css}")


def _points(series: Series, x_axis: Axis, y_axis: Axis) -> list[tuple[float, float, float, float]]:
    return [
        (x, y, x_axis(x), y_axis(y))
        for x, y in zip(series.x, series.y, strict=True)
        if math.isfinite(x) and math.isfinite(y) and (y > 0 or not y_axis.log)
    ]


def _line(series: Series, x_axis: Axis, y_axis: Axis, x_format: Format, y_format: Format) -> Markup:
    points = _points(series, x_axis, y_axis)
    path = " ".join(f"{px:.1f},{py:.1f}" for _, _, px, py in points)
    marked = len(points) <= MOST_MARKS
    dots = [
        element(
            "circle",
            element("title", f"{series.label}: {y_format(y)} at {x_format(x)}"),
            cx=px,
            cy=py,
            r=2.6 if marked else 5,
            class_=f"dot {series.css}" if marked else "feel",
        )
        for x, y, px, py in points
    ]
    line = element("polyline", points=path, class_=f"line {series.css}") if points else None
    return together(line, dots)


def _band(series: Series, x_axis: Axis, y_axis: Axis) -> Markup | None:
    if series.band is None:
        return None
    low, high = series.band
    least = y_axis.low if y_axis.log else -math.inf
    upper = [(x_axis(x), y_axis(max(y, least))) for x, y in zip(series.x, high, strict=True)]
    lower = [(x_axis(x), y_axis(max(y, least))) for x, y in zip(series.x, low, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*upper, *reversed(lower)])
    return element("polygon", points=path, class_=f"band {series.css}")

"""Tables drawn as squares: confusions, similarities, calibration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from convdkm.report.charts import area, drawing, figure, grid, keys
from convdkm.report.markup import Markup, svg_circle, svg_line, svg_rect, svg_text
from convdkm.report.outcome import wilson
from convdkm.report.scale import Axis, fitted, percent, short
from convdkm.training.metrics import Reliability

WIDTH, LETTER = 420.0, 7.0
MOST_LETTERS = 22
"""Of a name that is written out."""
CLOSE = 17.0
"""Height of a row below which its name is written smaller."""
DARK_FROM = 0.65
"""Share of the full colour from which the text on it is light."""


def heat_map(
    title: str,
    names: Sequence[str],
    shades: Sequence[Sequence[float]],
    *,
    text: Callable[[int, int], str],
    said: Callable[[int, int], str],
    labels: tuple[str, str] = ("", ""),
    css: Callable[[int, int], str] = lambda i, j: "fill s0",
) -> Markup:
    """A square table whose rows and columns have the same names, and whose cells are coloured.

    Shades are from 0 for no colour to 1 for all of it. Given row and column, ``text`` returns what
    stands in a cell, ``said`` what is shown while the pointer is on it, and ``css`` its classes.
    """
    names = [fitted(name, MOST_LETTERS) for name in names]
    longest = max(len(name) for name in names)
    edge = min(longest * LETTER + 10, WIDTH * 0.4)
    top = 20.0 if labels[1] else 4.0
    left = edge + (16 if labels[0] else 0)
    size = (WIDTH - left - 4) / len(names)
    bottom = top + len(names) * size
    cells = []
    for i in range(len(names)):
        for j in range(len(names)):
            shade = shades[i][j] if math.isfinite(shades[i][j]) else 0.0
            shade = min(max(shade, 0.0), 1.0)
            x, y = left + j * size, top + i * size
            opacity, ink = f"{shade:.3f}", "cell light" if shade > DARK_FROM else "cell"
            hint, side = said(i, j), size - 1
            cells += [
                svg_rect(x, y, side, side, css(i, j), hint=hint, fill_opacity=opacity),
                svg_text(text(i, j), x + size / 2, y + size / 2 + 4, class_=ink),
            ]
    turned, angle = longest * LETTER > size, 90 if size < CLOSE else 45
    small = f"font-size:{0.86 * size:.1f}px" if size < CLOSE else None
    for k, name in enumerate(names):
        x, y = left + (k + 0.5) * size, top + (k + 0.5) * size
        turn = f"rotate(-{angle} {x:.1f} {bottom + 10:.1f})" if turned else None
        anchor = "end" if turned else "middle"
        cells += [
            svg_text(name, left - 6, y + 4, "end", style=small),
            svg_text(name, x, bottom + 14, anchor, transform=turn, style=small),
        ]
    if any(labels):
        middle = (top + bottom) / 2
        cells += [
            svg_text(labels[1], (left + WIDTH) / 2, 12),
            svg_text(labels[0], 12, middle, transform=f"rotate(-90 12 {middle:g})"),
        ]
    height = bottom + (edge * (0.72 if angle == 45 else 0.9) + 12 if turned else 22)
    return figure(title, drawing(title, WIDTH, height, cells), css="chart square")


def reliability_diagram(title: str, bins: Reliability) -> Markup:
    """Accuracy against confidence, with 95% intervals, over how many images are in each bin."""
    left, right, bottom, strip = 46.0, WIDTH - 12, 262.0, 52.0
    x_axis, y_axis = Axis(0, 1, left, right), Axis(0, 1, bottom, 24.0)
    edges, most = bins.edges.tolist(), float(bins.count.max())
    base = bottom + 44 + strip
    marks = []
    for k, count in enumerate(bins.count.tolist()):
        if not count:
            continue
        confidence, accuracy = float(bins.confidence[k]), float(bins.accuracy[k])
        low, high = wilson(accuracy * count, count)
        said = (
            f"confidence {percent(edges[k])} to {percent(edges[k + 1])}: {count:,} images, mean"
            f" confidence {percent(confidence)}, right {percent(accuracy)}"
        )
        start, width = x_axis(edges[k]) + 1, x_axis(edges[k + 1]) - x_axis(edges[k]) - 2
        x, y = x_axis(confidence), y_axis(accuracy)
        height = max(strip * math.sqrt(count / most), 1.0)
        marks += [
            svg_rect(start, y, width, bottom - y, "fill faint s0", hint=said),
            svg_line(x, y_axis(low), x, y_axis(high), "whisker"),
            svg_circle(x, y, 4.5, "dot s0", hint=said),
            svg_rect(start, base - height, width, height, "fill s2", rx=1, hint=said),
        ]
    labels = "confidence: probability of the class", "share that is right"
    svg = drawing(
        title,
        WIDTH,
        base + 22,
        grid(x_axis, y_axis, forms=(percent, percent), labels=labels),
        diagonal(x_axis, y_axis),
        marks,
        svg_line(left, base, right, base, "axis"),
        svg_text(
            f"images in each bin (square root; at most {short(most)})",
            (left + right) / 2,
            base + 16,
        ),
    )
    entries = [(area(0), "share that is right, with its 95% interval"), (area(2), "images")]
    return figure(title, svg, below=keys(entries))


def diagonal(x_axis: Axis, y_axis: Axis) -> Markup:
    """Where confidence equals accuracy."""
    hint = "where confidence equals accuracy"
    return svg_line(x_axis(0), y_axis(0), x_axis(1), y_axis(1), "ideal", hint=hint)

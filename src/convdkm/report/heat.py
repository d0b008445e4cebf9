"""Tables drawn as squares: confusions, similarities, calibration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from convdkm.report.charts import area, drawing, figure, grid, keys
from convdkm.report.markup import Markup, element
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
    """A square table whose cells are coloured.

    Args:
        title: over it.
        names: of the rows, and of the columns.
        shades: 0 for no colour to 1 for all of it.
        text: what stands in a cell.
        said: what is said of a cell under the pointer.
        labels: what the rows and the columns are.
        css: classes of a cell.
    """
    names = [fitted(name, MOST_LETTERS) for name in names]
    longest = max(len(name) for name in names)
    edge = min(longest * LETTER + 10, WIDTH * 0.4)
    top = 20.0 if labels[1] else 4.0
    left = edge + (16 if labels[0] else 0)
    size = (WIDTH - left - 4) / len(names)
    turned = longest * LETTER > size
    angle = 90 if size < CLOSE else 45
    cells = []
    for i in range(len(names)):
        for j in range(len(names)):
            shade = shades[i][j] if math.isfinite(shades[i][j]) else 0.0
            shade = min(max(shade, 0.0), 1.0)
            x, y = left + j * size, top + i * size
            cells += [
                element(
                    "rect",
                    element("title", said(i, j)),
                    x=x,
                    y=y,
                    width=size - 1,
                    height=size - 1,
                    rx=2,
                    class_=css(i, j),
                    fill_opacity=f"{shade:.3f}",
                ),
                element(
                    "text",
                    text(i, j),
                    x=x + size / 2,
                    y=y + size / 2 + 4,
                    text_anchor="middle",
                    class_="cell light" if shade > DARK_FROM else "cell",
                ),
            ]
    bottom = top + len(names) * size
    small = f"font-size:{0.86 * size:.1f}px" if size < CLOSE else None
    rows = [
        element(
            "text", name, x=left - 6, y=top + (i + 0.5) * size + 4, text_anchor="end", style=small
        )
        for i, name in enumerate(names)
    ]
    columns = []
    for j, name in enumerate(names):
        x = left + (j + 0.5) * size
        turn = f"rotate(-{angle} {x:.1f} {bottom + 10:.1f})" if turned else None
        anchor = "end" if turned else "middle"
        columns.append(
            element(
                "text",
                name,
                x=x,
                y=bottom + 14,
                text_anchor=anchor,
                transform=turn,
                style=small,
            )
        )
    outside = [
        element("text", labels[1], x=(left + WIDTH) / 2, y=12, text_anchor="middle"),
        element(
            "text",
            labels[0],
            transform=f"translate(12 {(top + bottom) / 2:g}) rotate(-90)",
            text_anchor="middle",
        ),
    ]
    height = bottom + (edge * (0.72 if angle == 45 else 0.9) + 12 if turned else 22)
    svg = drawing(title, WIDTH, height, cells, rows, columns, outside if any(labels) else None)
    return figure(title, svg, css="chart square")


def reliability_diagram(title: str, bins: Reliability) -> Markup:
    """Accuracy against confidence, with 95% intervals, over how many images are in each bin."""
    bottom, top, strip = 262.0, 24.0, 52.0
    x_axis, y_axis = Axis(0, 1, 46, WIDTH - 12), Axis(0, 1, bottom, top)
    edges, most = bins.edges.tolist(), float(bins.count.max())
    base = bottom + 44 + strip
    marks = []
    for k, count in enumerate(bins.count.tolist()):
        if not count:
            continue
        confidence, accuracy = float(bins.confidence[k]), float(bins.accuracy[k])
        low, high = wilson(accuracy * count, count)
        said = element(
            "title",
            f"confidence {percent(edges[k])} to {percent(edges[k + 1])}: {count:,} images, mean"
            f" confidence {percent(confidence)}, right {percent(accuracy)}",
        )
        x, wide = x_axis(edges[k]) + 1, x_axis(edges[k + 1]) - x_axis(edges[k]) - 2
        tall = max(strip * math.sqrt(count / most), 1.0)
        marks += [
            element(
                "rect",
                said,
                x=x,
                width=wide,
                y=y_axis(accuracy),
                height=bottom - y_axis(accuracy),
                rx=2,
                class_="fill faint s0",
            ),
            element(
                "line",
                x1=x_axis(confidence),
                x2=x_axis(confidence),
                y1=y_axis(low),
                y2=y_axis(high),
                class_="whisker",
            ),
            element(
                "circle", said, cx=x_axis(confidence), cy=y_axis(accuracy), r=4.5, class_="dot s0"
            ),
            element(
                "rect", said, x=x, width=wide, y=base - tall, height=tall, rx=1, class_="fill s2"
            ),
        ]
    svg = drawing(
        title,
        WIDTH,
        base + 22,
        grid(
            x_axis,
            y_axis,
            forms=(percent, percent),
            labels=("confidence: probability of the class", "share that is right"),
        ),
        diagonal(x_axis, y_axis),
        marks,
        element("line", x1=46, x2=WIDTH - 12, y1=base, y2=base, class_="axis"),
        element(
            "text",
            f"images in each bin (square root; at most {short(most)})",
            x=(46 + WIDTH - 12) / 2,
            y=base + 16,
            text_anchor="middle",
        ),
    )
    entries = [(area("s0"), "share that is right, with its 95% interval"), (area("s2"), "images")]
    return figure(title, svg, below=keys(entries))


def diagonal(x_axis: Axis, y_axis: Axis) -> Markup:
    """Where confidence equals accuracy."""
    return element(
        "line",
        element("title", "where confidence equals accuracy"),
        x1=x_axis(0),
        x2=x_axis(1),
        y1=y_axis(0),
        y2=y_axis(1),
        class_="ideal",
    )

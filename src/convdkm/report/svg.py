"""Shapes of inline SVG; their colours are classes of the style sheet.

A ``hint`` is shown while the pointer is on the shape.
"""

from __future__ import annotations

from collections.abc import Iterable

from convdkm.report.markup import Markup, element


def line(
    x1: float, y1: float, x2: float, y2: float, css: str, *, hint: str | None = None
) -> Markup:
    """A straight line."""
    return element("line", _title(hint), x1=x1, y1=y1, x2=x2, y2=y2, class_=css)


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    css: str,
    *,
    rx: int = 2,
    hint: str | None = None,
    fill_opacity: str | None = None,
) -> Markup:
    """A rectangle with rounded corners."""
    sizes = {"x": x, "y": y, "width": width, "height": height, "rx": rx}
    return element("rect", _title(hint), **sizes, class_=css, fill_opacity=fill_opacity)


def circle(x: float, y: float, radius: float, css: str, *, hint: str | None = None) -> Markup:
    """A disc."""
    return element("circle", _title(hint), cx=x, cy=y, r=radius, class_=css)


def path(
    name: str, points: Iterable[tuple[float, float]], css: str, *, hint: str | None = None
) -> Markup:
    """A ``polyline`` or ``polygon`` through points."""
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element(name, _title(hint), points=corners, class_=css)


def text(
    content: object, x: float, y: float, anchor: str | None = "middle", **more: object
) -> Markup:
    """Text whose ``start``, ``middle`` or ``end`` is at a place."""
    return element("text", content, x=x, y=y, text_anchor=anchor, **more)


def _title(hint: str | None) -> Markup | None:
    return None if hint is None else element("title", hint)

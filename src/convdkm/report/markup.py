"""HTML and SVG from Python: everything is escaped, unless it is markup already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from convdkm.storage.text import legible

VOID = frozenset({"br", "img", "meta", "link"})


class Markup(str):
    """Text that is HTML already, and goes into a page as it is."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element with its attributes and children.

    Underscores in the names of attributes stand for hyphens, one at the end sets a name apart from
    Python's own words; an attribute that is None is left out. Children are text, numbers, markup,
    or lists of them.

    >>> element("p", "a < b", class_="note", data_id=None)
    '<p class="note">a &lt; b</p>'
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{shown}>")
    return Markup(f"<{name}{shown}>{together(*children)}</{name}>")


def together(*children: object) -> Markup:
    """Children side by side, as markup."""
    return Markup("".join(_child(child) for child in children))


def _child(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if not isinstance(child, str) and isinstance(child, Iterable):
        return together(*child)
    return escape(_text(child), quote=False)


def _text(value: object) -> str:
    """Numbers with two decimals at most: a coordinate needs no more."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return legible(value)


# -- SVG, whose colours are classes of the style sheet ---------------------------------------------


def svg_line(
    x1: float, y1: float, x2: float, y2: float, css: str, *, hint: str | None = None
) -> Markup:
    """A line; ``hint`` is shown under the pointer."""
    return element("line", _hint(hint), x1=x1, y1=y1, x2=x2, y2=y2, class_=css)


def svg_rect(
    x: float, y: float, width: float, height: float, css: str, *, rx: int = 2, **more: object
) -> Markup:
    """A rectangle with rounded corners."""
    hint = _hint(more.pop("hint", None))
    return element("rect", hint, x=x, y=y, width=width, height=height, rx=rx, class_=css, **more)


def svg_circle(x: float, y: float, radius: float, css: str, *, hint: str | None = None) -> Markup:
    """A disc."""
    return element("circle", _hint(hint), cx=x, cy=y, r=radius, class_=css)


def svg_path(
    name: str, points: Iterable[tuple[float, float]], css: str, *, hint: str | None = None
) -> Markup:
    """A ``polyline`` or ``polygon`` through points."""
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element(name, _hint(hint), points=corners, class_=css)


def svg_text(
    content: object, x: float, y: float, anchor: str | None = "middle", **more: object
) -> Markup:
    """Text whose ``start``, ``middle`` or ``end`` is at a place."""
    return element("text", content, x=x, y=y, text_anchor=anchor, **more)


def _hint(text: object) -> Markup | None:
    return None if text is None else element("title", text)

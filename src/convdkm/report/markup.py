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

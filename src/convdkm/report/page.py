"""The page around the sections: style, contents, head and foot. It asks the network for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from convdkm import __version__
from convdkm.report.markup import Markup, element, svg_rect

GENERATOR = "convdkm report"
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""What a browser may load for the page: nothing that is not in it."""


@dataclass(frozen=True)
class Section:
    """A part of the page, with an entry in its contents."""

    id: str
    title: str
    lead: object
    content: Sequence[object]

    def render(self) -> Markup:
        heading = element("h2", element("a", self.title, href=f"#{self.id}"))
        lead = element("p", self.lead, class_="lead") if self.lead else None
        return element("section", heading, lead, self.content, id=self.id)


def page(
    title: str, subtitle: object, parts: Sequence[Section | None], *, notes: Sequence[str] = ()
) -> str:
    """A whole page of those sections that are there; ``notes`` say what is missing, and why."""
    sections = [part for part in parts if part is not None]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="generator", content=f"{GENERATOR} {__version__}"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        element("link", rel="icon", href="data:,"),
        element("title", f"{title} · convdkm"),
        Markup(f"<style>{style()}</style>"),
    )
    links = [element("a", section.title, href=f"#{section.id}") for section in sections]
    contents = element("ul", [element("li", link) for link in links])
    missing = element(
        "aside",
        element("strong", "Not on this page"),
        element("ul", [element("li", note) for note in notes]),
        class_="notes",
    )
    body = element(
        "body",
        element("header", _mark(), element("div", element("h1", title), element("p", subtitle))),
        element("nav", contents, aria_label="contents"),
        element("main", missing if notes else None, [each.render() for each in sections]),
        element("footer", f"Made by convdkm {__version__}. It is one file, and loads nothing."),
    )
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


@cache
def style() -> str:
    """The style sheet."""
    return (files("convdkm.report") / "page.css").read_text(encoding="utf-8")


def columns(*parts: object) -> Markup:
    """Parts side by side, as many as the screen is wide enough for."""
    return element("div", parts, class_="columns")


def table(head: Sequence[object], rows: Sequence[Sequence[object]], *, css: str = "") -> Markup:
    """A table that scrolls in a box of its own where it is wider than the screen."""
    titles = element("tr", [element("th", cell, scope="col") for cell in head])
    lines = [
        element("tr", element("th", row[0], scope="row"), [element("td", cell) for cell in row[1:]])
        for row in rows
    ]
    shown = element(
        "table", element("thead", titles) if any(head) else None, element("tbody", lines)
    )
    return element("div", shown, class_=f"scroll {css}".strip(), tabindex=0)


def tiles(entries: Sequence[tuple[str, str, str]]) -> Markup:
    """Figures in large: what, how much, and a remark."""

    def tile(name: str, value: str, remark: str) -> Markup:
        below = element("dd", remark, class_="remark") if remark else None
        return element("div", element("dt", name), element("dd", value), below)

    return element("dl", [tile(*entry) for entry in entries], class_="tiles")


def _mark() -> Markup:
    """A small Gram matrix."""
    shades = (1.0, 0.55, 0.15, 0.55, 1.0, 0.35, 0.15, 0.35, 1.0)
    squares = [
        svg_rect(12 * (k % 3), 12 * (k // 3), 11, 11, "fill s0", fill_opacity=shade)
        for k, shade in enumerate(shades)
    ]
    return element("svg", squares, viewBox="0 0 35 35", class_="mark", aria_hidden="true")

"""The page around the sections: style, contents, head and foot. It asks the network for nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template

from convdkm import __version__
from convdkm.report.markup import Markup, element, together

GENERATOR = "convdkm report"


@dataclass(frozen=True)
class Section:
    """A part of the page, with an entry in its contents."""

    id: str
    title: str
    lead: object
    content: Sequence[object]

    @property
    def link(self) -> Markup:
        return element("a", self.title, href=f"#{self.id}")

    def render(self) -> Markup:
        lead = element("p", self.lead, class_="lead") if self.lead else None
        return element("section", element("h2", self.link), lead, self.content, id=self.id)


def page(
    title: str, subtitle: object, parts: Sequence[Section | None], *, notes: Sequence[str] = ()
) -> str:
    """A whole page of those sections that are there; ``notes`` say what is missing, and why."""
    sections = [part for part in parts if part is not None]
    missing = element("aside", element("strong", "Not on this page"), items(notes), class_="notes")
    folder = files("convdkm.report")
    return Template((folder / "page.html").read_text(encoding="utf-8")).substitute(
        generator=f"{GENERATOR} {__version__}",
        style=(folder / "page.css").read_text(encoding="utf-8"),
        title=together(title),
        subtitle=together(subtitle),
        contents=items([section.link for section in sections]),
        notes=missing if notes else "",
        sections=together(section.render() for section in sections),
        version=__version__,
    )


def items(entries: Iterable[object], css: str | None = None) -> Markup:
    """A list with a dot before each entry."""
    return element("ul", [element("li", entry) for entry in entries], class_=css)


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
    parts = element("thead", titles) if any(head) else None, element("tbody", lines)
    return element("div", element("table", parts), class_=f"scroll {css}".strip(), tabindex=0)

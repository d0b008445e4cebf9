"""A page read by a parser that takes no tag for granted."""

from html.parser import HTMLParser

from convdkm.report.markup import VOID


class Page(HTMLParser):
    """Elements by their names, with the text of all; unbalanced tags are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        if not self._open or self._open[-1] != "style":
            self.text += data

    def all(self, name: str) -> list[dict]:
        return [attributes for tag, attributes in self.elements if tag == name]

    @property
    def sections(self) -> list[str]:
        return [attributes["id"] for attributes in self.all("section")]

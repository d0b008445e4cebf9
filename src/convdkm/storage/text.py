r"""Text that comes from files and from the file system, made fit for where it is written.

What a name, a message or an entry of a file holds was chosen by others: codes that steer a
terminal, a line break that ends a LaTeX comment, a formula for a spreadsheet, bytes that are not
UTF-8. Every writer passes such text through the function for its target here, and through no other.

Bytes that cannot be shown are written as ``\xff``. :func:`name_text` and :func:`original` are each
other's inverse, so that a path survives being written down.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

_LINES = "\t\n"
_BREAKS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
_HIDDEN = re.compile(  # control codes, separators of lines, changes of direction, stray bytes
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_BYTE = re.compile(r"\\x([0-9a-f]{2})")
_FORMULA = tuple("=+-@\t\r＝＋－＠")
_LATEX = {each: f"\\{each}" for each in "&%#_{}$"} | {
    "–": "--",
    "×": r"$\times$",
    "ν": r"$\nu$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "∞": r"$\infty$",
    "±": r"$\pm$",
    "<": "$<$",
    ">": "$>$",
}
_MARKDOWN = {each: f"\\{each}" for each in "\\`*[]|"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def name_text(name: str | Path) -> str:
    r"""A name or path as text of one line, from which :func:`original` has it back.

    >>> print(name_text("caf\udce9\n.png"))
    caf\xe9\x0a.png
    """
    return _HIDDEN.sub(_escaped, _BYTE.sub(r"\\x5cx\1", str(name)))


def original(text: str) -> str:
    """The name or path that :func:`name_text` was given."""
    if not _BYTE.search(text):
        return text
    content = text.encode("utf-8", "surrogateescape")
    whole = re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), content)
    return whole.decode("utf-8", "surrogateescape")


def writable(text: str) -> bool:
    """Whether text can be written down as it is."""
    return _HIDDEN.search(text) is None


def named_path(text: str | Path) -> Path:
    """The path that settings name: as it stands, or else as :func:`name_text` wrote it."""
    path = Path(text).expanduser()
    return path if path.exists() else Path(original(str(text))).expanduser()


def legible(text: object) -> str:
    """Text for a terminal, a log or a page: lines and tabs stay, and nothing in it is obeyed."""
    return _HIDDEN.sub(lambda found: found[0] if found[0] in _LINES else _escaped(found), str(text))


def one_line(text: object) -> str:
    """Text for a place that ends with the line."""
    return _HIDDEN.sub(_escaped, _BREAKS.sub(" ", str(text)))


def csv_cell(value: object) -> object:
    """A value for CSV: text that a spreadsheet would take for a formula begins with a ``'``."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def csv_line(values: Iterable[object]) -> str:
    """A line of CSV."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


def in_latex(text: object) -> str:
    """Plain text for LaTeX, outside of comments."""
    return "".join(_LATEX.get(character, character) for character in one_line(text))


def in_markdown(text: object) -> str:
    """Plain text for Markdown: a paragraph, an item of a list or a cell of a table."""
    return "".join(_MARKDOWN.get(character, character) for character in one_line(text))


def in_shell(path: str | Path) -> str:
    """A path as a word of a command that a user can paste."""
    if writable(str(path)):
        return shlex.quote(str(path))
    content = os.fsencode(path)
    plain = (
        chr(byte) if 32 <= byte < 127 and byte not in b"\\'" else f"\\x{byte:02x}"
        for byte in content
    )
    return f"$'{''.join(plain)}'"


def shortened(text: str, most: int = 200) -> str:
    """Text that is cut off where it is long."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def written_anyhow(error: UnicodeError) -> tuple[str | bytes, int]:
    """For what an encoding lacks: stray bytes of a name as they were, else a question mark."""
    assert isinstance(error, UnicodeEncodeError), "for writing alone"
    character = error.object[error.start]
    stray = "\udc80" <= character <= "\udcff"
    return bytes([ord(character) - 0xDC00]) if stray else "?", error.start + 1


def _escaped(found: re.Match[str]) -> str:
    """A character as its bytes; a stray byte of a name is a surrogate in Python."""
    stray = "\udc80" <= found[0] <= "\udcff"
    content = found[0].encode("utf-8", "surrogateescape" if stray else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in content)

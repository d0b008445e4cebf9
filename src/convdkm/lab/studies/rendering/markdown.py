"""A table as Markdown: ours beside the published."""

from __future__ import annotations

from collections.abc import Sequence

from convdkm.lab.studies.rendering.numbers import MISSING, decimals, seeds, with_error
from convdkm.lab.studies.results import Block, Cell, Line, TableResult, dataset_title
from convdkm.storage.text import in_markdown

MARKS = {"above": "▲", "below": "▼"}
LEGEND = (
    "Mean ± standard error over seeds. Bold: not significantly worse than the best of the column"
    " (one-tailed Welch test, 5%). ▲ ▼: significantly above or below the published value"
    " (two-tailed, 5%)."
)


def markdown(table: TableResult) -> str:
    """The whole table, with its scale and its notes."""
    parts = [f"## {in_markdown(table.title)}", scale_sentence(table)]
    for block in table.blocks:
        parts += [f"### {in_markdown(block.title)}", _grid(table, block)]
    parts.append(LEGEND)
    if table.notes:
        parts.append("\n".join(f"- {in_markdown(note)}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


def scale_sentence(table: TableResult) -> str:
    """At what scale it was run, plainly."""
    if not table.scale:
        return "At the scale of the paper."
    return f"**Not at the scale of the paper**: {in_markdown('; '.join(table.scale))}."


def _grid(table: TableResult, block: Block) -> str:
    sourced = any(line.row.source for line in block.lines)
    head = [*(["Paper"] if sourced else []), in_markdown(table.heading)]
    for dataset in table.datasets:
        head += [in_markdown(dataset_title(dataset)), "published"]
    if block.timed:
        head += ["s / epoch", "published"]
    left = 2 if sourced else 1
    rows = [_row(line, block, sourced) for line in block.lines]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = [
        "-" * width if index < left else "-" * (width - 1) + ":"
        for index, width in enumerate(widths)
    ]
    return "\n".join(_join(cells, widths, left) for cells in (head, rule, *rows))


def _join(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    padded = [
        cell.ljust(width) if index < left else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def _row(line: Line, block: Block, sourced: bool) -> list[str]:
    digits = decimals(block.metric)
    cells = [in_markdown(line.row.source or "")] * sourced + [in_markdown(line.row.label)]
    for cell in line.cells:
        cells += [_ours(cell, digits), _published(cell, digits)]
    if block.timed:
        times = (line.seconds, line.published_seconds)
        cells += [MISSING if value is None else _time(value) for value in times]
    return cells


def _ours(cell: Cell, digits: int) -> str:
    missing = seeds(cell)
    if cell.ours is None:
        return f"{MISSING} ({missing})" if missing else MISSING
    text = with_error(cell.ours, digits, "±")
    text = f"**{text}**" if cell.bold else text
    mark = f" {MARKS[cell.difference]}" if cell.difference else ""
    return f"{text}{mark}{f' ({missing})' if missing else ''}"


def _published(cell: Cell, digits: int) -> str:
    if cell.published is None:
        return MISSING
    text = with_error(cell.published, digits, "±")
    return f"**{text}**" if cell.published.bold else text


def _time(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}"

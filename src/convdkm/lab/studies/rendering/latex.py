r"""A table as LaTeX with booktabs, as in the paper; its first line names the packages."""

from __future__ import annotations

from collections.abc import Sequence

from convdkm.lab.studies.rendering.numbers import decimals, seeds, with_error
from convdkm.lab.studies.results import Block, Cell, Line, TableResult, dataset_title
from convdkm.storage.text import in_latex, one_line

MARKS = {"above": r"$^{\blacktriangle}$", "below": r"$^{\blacktriangledown}$"}
WIDE = 6
"""Columns beyond which a table is shrunk to the width of the text."""


def latex(table: TableResult) -> str:
    """A whole ``table`` environment; notes are comments below it."""
    sourced = any(line.row.source for block in table.blocks for line in block.lines)
    timed = any(block.timed for block in table.blocks)
    first = ["", "Paper", "Method"] if sourced else ["", in_latex(table.heading)]
    if not sourced and table.blocks[0].category.latex_heading and not _collects(table):
        first[1] = table.blocks[0].category.latex_heading
    columns = len(first) + 2 * len(table.datasets) + 2 * timed
    heads = [rf"\multicolumn{{2}}{{c}}{{{in_latex(dataset_title(d))}}}" for d in table.datasets]
    heads += [r"\multicolumn{2}{c}{Time per epoch (s)}"] * timed
    pairs = ["ours & published"] * (len(table.datasets) + timed)
    rules = [
        rf"\cmidrule(lr){{{start}-{start + 1}}}" for start in range(len(first) + 1, columns, 2)
    ]
    blank = ["" for _ in first]
    wide = columns > WIDE
    lines = [
        r"% \usepackage{amssymb, booktabs, graphicx, multirow}",
        r"\begin{table}[t]",
        r"    \centering",
        rf"    \caption{{{_caption(table)}}}",
        rf"    \label{{tab:{table.name}}}",
        *([r"    \resizebox{\textwidth}{!}{"] * wide),
        rf"    \begin{{tabular}}{{{'l' * len(first)}{'c' * (columns - len(first))}}}",
        r"        \toprule",
        f"        {' & '.join([*blank, *heads])} \\\\",
        f"        {''.join(rules)}",
        f"        {' & '.join([*first, *pairs])} \\\\",
    ]
    for block in table.blocks:
        lines += [r"        \midrule", *_rows(block, sourced, timed)]
    end = r"    \end{tabular}" + "}" * wide
    lines += [r"        \bottomrule", end, r"\end{table}"]
    lines += [f"% {one_line(note)}" for note in table.notes]
    return "\n".join(lines) + "\n"


def _collects(table: TableResult) -> bool:
    return len({block.category.name for block in table.blocks}) > 1


def _caption(table: TableResult) -> str:
    scale = f"Not at the scale of the paper: {'; '.join(table.scale)}." if table.scale else ""
    return " ".join(
        filter(
            None,
            [
                in_latex(f"{table.title}."),
                r"Mean $\pm$ standard error over seeds. Bold shows values statistically similar to"
                r" the maximum in each category, according to a one-tailed Welch test;"
                r" $\blacktriangle$ and $\blacktriangledown$ values significantly above and below"
                r" the published.",
                in_latex(scale),
            ],
        )
    )


def _rows(block: Block, sourced: bool, timed: bool) -> Sequence[str]:
    rows, before = [], object()
    for index, line in enumerate(block.lines):
        title = rf"\multirow{{{len(block.lines)}}}{{*}}{{{in_latex(block.title)}}}"
        if sourced:
            group, title = line.row.group, in_latex(f"Kernel methods {line.row.group or ''}")
            if index and group != before:
                rows.append(r"        \midrule")
            first = [title if group and group != before else "", in_latex(line.row.source or "")]
            before = group
        else:
            first = [title if index == 0 else ""]
        rows.append(f"        {' & '.join([*first, *_cells(line, block, timed)])} \\\\")
    return rows


def _cells(line: Line, block: Block, timed: bool) -> list[str]:
    digits = decimals(block.metric)
    cells = [line.row.latex or in_latex(line.row.label)]
    for cell in line.cells:
        cells += [_ours(cell, digits), _published(cell, digits)]
    if timed:
        times = (line.seconds, line.published_seconds)
        cells += ["" if value is None else f"{value:.0f}" for value in times]
    return cells


def _ours(cell: Cell, digits: int) -> str:
    missing = seeds(cell)
    if cell.ours is None:
        return f"-- ({missing})" if missing else "--"
    text = with_error(cell.ours, digits, r"$\pm$")
    text = rf"\textbf{{{text}}}" if cell.bold else text
    mark = MARKS[cell.difference] if cell.difference else ""
    return f"{text}{mark}{f' ({missing})' if missing else ''}"


def _published(cell: Cell, digits: int) -> str:
    if cell.published is None:
        return "--"
    text = with_error(cell.published, digits, r"$\pm$")
    return rf"\textbf{{{text}}}" if cell.published.bold else text

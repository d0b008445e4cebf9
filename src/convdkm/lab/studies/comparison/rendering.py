"""The table of a training size as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from convdkm.lab.studies.comparison.results import METRICS, Row, SizeTable
from convdkm.lab.studies.rendering.numbers import MISSING, with_error
from convdkm.storage.text import csv_cell, in_latex, in_markdown, one_line

LEGEND = (
    "Mean ± standard error over seeds. Bold: not significantly worse than the best of the column"
    " (one-tailed Welch test, 5%). Log-likelihood and calibration error are of the probabilities of"
    " the test images, {missing} where a method has none. Seconds: of the fit, and to predict 1,000"
    " images. Memory: the most that the fit and the prediction took beyond what the process held"
    " before. Numbers learned include the weights of training images in kernel regression."
)
HEADS = ("Accuracy (%)", "Log-likelihood", "ECE", "Fit (s)", "Predict (s)", "MiB", "Learned")
PUBLISHED = "Published (%)"
DIGITS = {"accuracy": 2, "log_likelihood": 4, "ece": 4, "brier": 4}
Bold = Callable[[str], str]


def head(table: SizeTable) -> list[str]:
    """Titles of the columns."""
    return ["Method", *HEADS, *([PUBLISHED] if table.claims else [])]


def cells(row: Row, *, sign: str, bold: Bold, published: bool) -> list[str]:
    """The cells of a row but the first.

    Args:
        row: the row.
        sign: of plus or minus.
        bold: makes text bold.
        published: whether there is such a column.
    """
    found = [_metric(row, name, sign, bold) for name in ("accuracy", "log_likelihood", "ece")]
    fit = _seconds(row.fit_seconds)
    found += [
        fit if row.whole_fit else f"> {fit}",
        _seconds(row.predict_seconds),
        MISSING if row.memory is None else f"{row.memory:,.0f}",
        MISSING if row.parameters is None else f"{row.parameters:,.0f}",
    ]
    if published:
        figures = [with_error(each.accuracy, 2, sign) for each in row.published]
        found.append(", ".join(figures) or MISSING)
    return found


def markdown(table: SizeTable) -> str:
    """The whole table, with its terms and its notes."""

    def bold(text: str) -> str:
        return f"**{text}**"

    rows = [
        [in_markdown(row.label), *cells(row, sign="±", bold=bold, published=table.claims)]
        for row in table.rows
    ]
    columns = head(table)
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    rule = [
        "-" * width if index == 0 else "-" * (width - 1) + ":" for index, width in enumerate(widths)
    ]
    grid = "\n".join(_join(each, widths) for each in (columns, rule, *rows))
    title, terms = in_markdown(table.title), in_markdown(sentence(table))
    parts = [f"## {title}", terms, grid, LEGEND.format(missing=MISSING)]
    if table.notes:
        parts.append("\n".join(f"- {in_markdown(note)}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


def latex(table: SizeTable) -> str:
    """A whole ``table`` environment with booktabs; notes are comments below it."""
    columns = head(table)
    caption = f"{table.title}. {sentence(table)} {LEGEND.format(missing='--')}"
    lines = [
        r"% \usepackage{booktabs, graphicx}",
        r"\begin{table}[t]",
        r"    \centering",
        rf"    \caption{{{in_latex(caption)}}}",
        rf"    \label{{tab:compare-{table.name}}}",
        r"    \resizebox{\textwidth}{!}{",
        rf"    \begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        r"        \toprule",
        f"        {' & '.join(map(in_latex, columns))} \\\\",
        r"        \midrule",
    ]
    for row in table.rows:
        found = cells(row, sign=r"$\pm$", bold=_latex_bold, published=table.claims)
        shown = [in_latex(row.label), *(_latex_cell(each) for each in found)]
        lines.append(f"        {' & '.join(shown)} \\\\")
    lines += [r"        \bottomrule", r"    \end{tabular}}", r"\end{table}"]
    lines += [f"% {one_line(note)}" for note in table.notes]
    return "\n".join(lines) + "\n"


COLUMNS = (
    "method",
    "label",
    "train_size",
    *(f"{name}{end}" for name in METRICS for end in ("", "_standard_error", "_bold")),
    "fit_seconds",
    "fit_seconds_whole",
    "predict_seconds_per_1000",
    "added_memory_mib",
    "peak_memory_mib",
    "parameters",
    "seeds",
    "seeds_planned",
    "seeds_failed",
    "published_accuracy",
    "published_source",
    "terms",
)


def comma_separated(table: SizeTable) -> str:
    """Nothing rounded; accuracies in per cent, blank where there is nothing."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in table.rows:
        values: dict[str, object] = {
            "method": row.method.name,
            "label": row.label,
            "train_size": table.size,
            "fit_seconds": row.fit_seconds,
            "fit_seconds_whole": int(row.whole_fit),
            "predict_seconds_per_1000": row.predict_seconds,
            "added_memory_mib": row.memory,
            "peak_memory_mib": row.peak,
            "parameters": row.parameters,
            "seeds": 0 if row.accuracy is None else row.accuracy.count,
            "seeds_planned": row.planned,
            "seeds_failed": row.failed,
            "published_accuracy": "; ".join(f"{each.accuracy.mean:g}" for each in row.published),
            "published_source": "; ".join(f"{e.label}, {e.source}" for e in row.published),
            "terms": sentence(table),
        }
        for name, summary in row.metrics.items():
            values[name], values[f"{name}_standard_error"] = summary.mean, summary.error
            values[f"{name}_bold"] = int(name in row.bold)
        writer.writerow({name: csv_cell(value) for name, value in values.items()})
    return text.getvalue()


FORMATS = {"markdown": (markdown, "md"), "latex": (latex, "tex"), "csv": (comma_separated, "csv")}


def sentence(table: SizeTable) -> str:
    """On what terms methods were compared."""
    return f"{'; '.join(table.terms)}."


def _metric(row: Row, name: str, sign: str, bold: Bold) -> str:
    value = row.metrics.get(name)
    state = row.state if name == "accuracy" else ""
    if value is None:
        return state or MISSING
    text = with_error(value, DIGITS[name], sign)
    return (bold(text) if name in row.bold else text) + (f" ({state})" if state else "")


def _seconds(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _join(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if index == 0 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def _latex_bold(text: str) -> str:
    return rf"\textbf{{{text}}}"


def _latex_cell(text: str) -> str:
    """A cell that is LaTeX but for a dash and a sign of order."""
    return text.replace(MISSING, "--").replace("> ", "$>$ ")

"""The look of figures: readable in grey, and the same whatever the user's own settings are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from convdkm.storage.files import replacing

OURS, PUBLISHED, FAINT = "black", "0.55", "0.85"
DPI = 150
LINE = 0.16
"""Height of a line of the title, in inches."""
MOST_TICKS = 6
_STYLE = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,  # names of data sets are text
}


@contextmanager
def figure(path: Path, heights: Sequence[float], columns: int, width: float) -> Iterator[Any]:
    """A figure of panels and its axes; written when the block is left.

    Args:
        path: of the PNG.
        heights: of the rows of panels, in inches.
        columns: of panels.
        width: of all columns, in inches.
    """
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style.context(["default", _STYLE]):
        made = Figure(figsize=(width, sum(heights) + 1.1), layout="constrained")
        FigureCanvasAgg(made)
        yield made, made.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
        with replacing(path) as temporary:
            made.savefig(temporary, dpi=DPI, format="png")


def add_legend(made: Any, axes: Any, columns: int) -> None:
    """One legend for all panels, below them."""
    handles: dict[str, Any] = {}
    for panel in axes.flat:
        found = panel.get_legend_handles_labels()
        handles.update(zip(found[1], found[0], strict=True))
    made.legend(handles.values(), handles, loc="outside lower center", ncols=columns, fontsize=8)


def add_title(made: Any, title: str, terms: str) -> None:
    """Title, and below it on what terms the figures were made."""
    import textwrap

    lines = textwrap.wrap(terms, max(50, int(13 * made.get_figwidth())))
    made.set_figheight(made.get_figheight() + LINE * len(lines))
    made.suptitle("\n".join([title, *lines]), fontsize=9 if lines else 10)


def plain_ticks(panel: Any, shown: Sequence[float]) -> None:
    """Plain numbers along a logarithmic axis: the sizes shown where they are few, or round ones."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if all(isinstance(x, int) for x in shown) and len(shown) <= MOST_TICKS:
        panel.set_xticks(shown)
        panel.set_xticks([], minor=True)
    elif shown[-1] < 100 * shown[0]:
        middle = math.sqrt(shown[0] * shown[-1])
        panel.set_xlim(min(0.9 * shown[0], middle / 3), max(1.1 * shown[-1], 3 * middle))
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())

"""Figures of a comparison, readable in grey: accuracy against training size, time and FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convdkm.lab.baselines.methods import NAMES, Method
from convdkm.lab.studies.comparison.results import Results, Row, SizeTable
from convdkm.lab.studies.statistics import Summary
from convdkm.lab.studies.style import add_legend, add_title, figure, plain_ticks

SHAPES = "osD^vPX*<"
"""Of marks, which are hollow for the first methods and full for the others: none has two."""
HIGH = 90.0
"""Accuracy, in percent, from which on figures are drawn by the error."""
ACCURACY_TICKS = (0, 20, 40, 60, 70, 80, 85, 90, 92, 94, 95, 96, 97, 98, 99, 99.5, 99.8, 99.9)
AXES = {
    "sizes": ("Training images", "by training size"),
    "seconds": ("Seconds to fit", "by time to fit"),
    "flops": ("TFLOP of the training steps", "by FLOPs"),
}
"""Labels of the horizontal axis, and titles."""
LOOKS = {
    "machines": {"color": "0.0", "ls": "-", "lw": 1.6},
    "networks": {"color": "0.0", "ls": "--", "lw": 1.2},
    "nngp": {"color": "0.55", "ls": "-", "lw": 1.2},
    "myrtle": {"color": "0.35", "ls": "-.", "lw": 1.2},
    "processes": {"color": "0.55", "ls": ":", "lw": 1.4},
}
"""Lines by the group of a method, or by how its name begins."""


@dataclass(frozen=True)
class Curve:
    """A method over the training sizes at which it is finished."""

    row: Row
    sizes: list[int] = field(default_factory=list)
    accuracies: list[Summary] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)


def curves(tables: Sequence[SizeTable]) -> list[Curve]:
    """The finished methods, in the order of tables."""
    found: dict[str, Curve] = {}
    for table in tables:
        for row in table.rows:
            if row.accuracy.ours is not None and row.fit_seconds is not None:
                curve = found.setdefault(row.method.name, Curve(row))
                curve.sizes.append(table.size)
                curve.accuracies.append(row.accuracy.ours)
                curve.seconds.append(row.fit_seconds)
                if row.flops is not None:
                    curve.flops.append(row.flops)
    return list(found.values())


def look(method: Method) -> dict[str, Any]:
    """Line and mark of a method, the same in every figure."""
    line = next(LOOKS[k] for k in LOOKS if method.group == k or method.name.startswith(k))
    turn, shape = divmod(NAMES.index(method.name), len(SHAPES))
    fill = {} if turn else {"mfc": "white"}
    return {**line, **fill, "marker": SHAPES[shape]}


def draw(results: Results, folder: Path) -> list[Path]:
    """Write the figures as PNG; the files written."""
    found = curves(results.tables())
    written = []
    if len({size for curve in found for size in curve.sizes}) > 1:
        written.append(folder / "accuracy-by-size.png")
        _draw(results, written[-1], found, "sizes")
    if found:
        written.append(folder / "accuracy-by-seconds.png")
        _draw(results, written[-1], found, "seconds")
    if counted := [curve for curve in found if len(curve.flops) == len(curve.sizes)]:
        written.append(folder / "accuracy-by-flops.png")
        _draw(results, written[-1], counted, "flops")
    return written


def _draw(results: Results, path: Path, found: Sequence[Curve], along: str) -> None:
    """Draw the accuracies along the sizes or the seconds of curves."""
    label, title = AXES[along]
    legend_rows = -(-len(found) // 3)
    with figure(path, [3.4 + 0.17 * legend_rows], 1, 6.4) as (made, axes):
        panel = axes[0][0]
        for curve in found:
            panel.errorbar(
                getattr(curve, along),
                [each.mean for each in curve.accuracies],
                [each.error or 0.0 for each in curve.accuracies],
                label=curve.row.label,
                ms=5,
                capsize=2,
                **look(curve.row.method),
            )
        panel.set_xscale("log")
        plain_ticks(panel, sorted({x for curve in found for x in getattr(curve, along)}))
        panel.set_xlabel(label)
        _accuracy_axis(panel, [each.mean for curve in found for each in curve.accuracies])
        add_legend(made, axes, 3)
        add_title(made, f"{results.title}: accuracy {title}", f"{'; '.join(results.terms())}.")


def by_error(means: Sequence[float]) -> bool:
    """Whether accuracies are so close to 100% that the errors tell methods apart."""
    return max(means) >= HIGH


def _accuracy_axis(panel: Any, means: Sequence[float]) -> None:
    """The accuracy, upwards; where it is high by the logarithm of what lacks to 100%."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    panel.set_ylabel("Test accuracy (%)")
    if not by_error(means):
        return
    panel.set_yscale("function", functions=(_place, lambda place: 100 - 10.0 ** (-place)))
    low, high = (_place(bound) for bound in (min(means), max(means)))
    margin = 0.06 * max(high - low, 0.1)
    panel.set_ylim(100 - 10.0 ** (margin - low), 100 - 10.0 ** (-margin - high))
    panel.yaxis.set_major_locator(FixedLocator(ACCURACY_TICKS))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _place(accuracy: Any) -> Any:
    """Minus the decimal logarithm of the error, which no test set can show to be below 0.01%."""
    from numpy import log10, maximum

    return -log10(maximum(100 - accuracy, 0.01))

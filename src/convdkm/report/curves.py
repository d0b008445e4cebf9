"""Learning curves from the records of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convdkm.report.charts import Series
from convdkm.report.insight import short_names
from convdkm.report.record import Record

SPAN = 3000.0
"""Of the chart of costs, from its largest value down."""
MOST_POINTS = 120
"""Points of a curve of steps; neighbours are averaged."""
PARTS = ("test", "validation", "train")


@dataclass(frozen=True)
class Curves:
    """Lines that share a chart, and what their axes are.

    Attributes:
        log: whether y is by logarithms; None to decide from the values.
        low: where y begins; None for the smallest value.
    """

    series: list[Series]
    x_label: str
    y_label: str
    log: bool | None = None
    low: float | None = None

    @property
    def are_lines(self) -> bool:
        """Whether there are two points to join anywhere."""
        return any(len(series.x) > 1 for series in self.series)


def cost_curves(record: Record) -> Curves:
    r"""The objective with its sign turned, and the three parts that add up to it.

    .. math:: -\mathcal L = -E_Q[\log P(y|f)] + \tfrac1N\sum_\ell\nu_\ell D_{KL}^\ell
              + \tfrac1N D_{KL}^{head}
    """
    parts = (
        ("all: minus the objective", "objective", -1.0),
        ("minus the expected log-likelihood", "expected_log_likelihood", -1.0),
        ("Gram layers: Σ ν KL / N", "kl", 1.0),
        ("head: KL / N", "head_kl", 1.0),
    )
    series = [
        _of_steps(record, name, label, k, sign) for k, (label, name, sign) in enumerate(parts)
    ]
    # The head's KL starts at zero, which would make the rest of the chart flat.
    large = [y for each in series[:2] for y in each.y]
    log = bool(large) and min(large) > 0
    low = max(min(y for each in series for y in each.y), max(large) / SPAN) if log else None
    return Curves(series, step_label(record), "nats per image", log, low)


def objective_curve(record: Record, label: str, style: int) -> Series:
    """Minus the objective, as one line."""
    return _of_steps(record, "objective", label, style, -1.0)


def rate_curve(record: Record) -> Curves:
    """The learning rate."""
    return Curves(
        [_of_steps(record, "learning_rate", "rate", 0, 1.0)], step_label(record), "rate", False
    )


def epoch_curves(record: Record, figure: str, y_label: str, *, error: bool = False) -> Curves:
    """A figure of every part of the data, epoch by epoch; one minus it for an error."""
    series = []
    for style, part in enumerate(PARTS):
        rows = [row for row in record.epochs if f"{part}_{figure}" in row]
        if rows:
            values = [row[f"{part}_{figure}"] for row in rows]
            values = [1 - value for value in values] if error else values
            label = "training, as it went" if part == "train" else part
            series.append(Series(label, [row["epoch"] for row in rows], values, style))
    return Curves(series, "epoch", y_label)


def layer_curves(record: Record) -> Curves:
    """Every Gram layer's KL, epoch by epoch."""
    names = list(dict.fromkeys(name for layers in record.layers.values() for name in layers))
    series = []
    for style, (name, label) in enumerate(zip(names, short_names(names), strict=True)):
        epochs = [epoch for epoch, layers in record.layers.items() if name in layers]
        values = [record.layers[epoch][name] for epoch in epochs]
        series.append(Series(label, [float(epoch) for epoch in epochs], values, style))
    return Curves(series, "epoch", "KL, nats")


def step_label(record: Record) -> str:
    """What steps are counted in."""
    return "step" if record.steps_per_epoch is None else "epoch"


def _of_steps(record: Record, name: str, label: str, style: int, sign: float) -> Series:
    per_epoch = record.steps_per_epoch or 1.0
    rows = [row for row in record.steps if name in row]
    x, y, low, high = thinned(
        [row["step"] / per_epoch for row in rows], [sign * row[name] for row in rows]
    )
    return Series(label, x, y, style, (low, high) if len(rows) > len(x) else None)


def thinned(
    x: Sequence[float], y: Sequence[float], most: int = MOST_POINTS
) -> tuple[list[float], list[float], list[float], list[float]]:
    """At most ``most`` points: means of neighbours, with the least and the largest of them."""
    size = max(-(-len(x) // most), 1)
    parts = [slice(k, k + size) for k in range(0, len(x), size)]
    return (
        [sum(x[part]) / len(x[part]) for part in parts],
        [sum(y[part]) / len(y[part]) for part in parts],
        [min(y[part]) for part in parts],
        [max(y[part]) for part in parts],
    )

"""Learning curves from the records of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from convdkm.insight.look import short_names
from convdkm.report.charts import Series
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


def objective_curves(records: Sequence[Record]) -> Curves:
    """Minus the objective of several runs, over epochs; over steps where one has no whole epoch."""
    noted = [record for record in records if record.steps]
    by_epoch = all(record.steps_per_epoch is not None for record in noted)
    series = [
        _of_steps(record, "objective", record.name, style, -1.0, by_epoch=by_epoch)
        for style, record in enumerate(records)
    ]
    return Curves(series, "epoch" if by_epoch else "step", "nats per image")


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


def layer_curves(record: Record, figure: str = "kl", y_label: str = "KL, nats") -> Curves:
    """An instrument of every Gram layer, epoch by epoch; epoch 0 is before training.

    The KL is shown from epoch 1, as it starts at zero or at what ``gram_scale`` makes it.
    """
    epochs = [epoch for epoch in record.layers if epoch or figure != "kl"]
    grams = {
        name: None
        for layers in record.layers.values()
        for name, values in layers.items()
        if values.keys() & {"kl", "spread"}
    }
    series = []
    for style, (name, label) in enumerate(zip(grams, short_names(list(grams)), strict=True)):
        known = [epoch for epoch in epochs if figure in record.layers[epoch].get(name, {})]
        values = [record.layers[epoch][name][figure] for epoch in known]
        if known:
            series.append(Series(label, [float(epoch) for epoch in known], values, style))
    return Curves(series, "epoch", y_label)


def step_label(record: Record) -> str:
    """What steps are counted in."""
    return "step" if record.steps_per_epoch is None else "epoch"


def _of_steps(
    record: Record, name: str, label: str, style: int, sign: float, *, by_epoch: bool = True
) -> Series:
    per_epoch = (record.steps_per_epoch if by_epoch else None) or 1.0
    rows = [row for row in record.steps if name in row]
    x, y, low, high = thinned(
        [row["step"] / per_epoch for row in rows], [sign * row[name] for row in rows]
    )
    return Series(label, x, y, style, (low, high) if len(rows) > len(x) else None)


def thinned(
    x: Sequence[float], y: Sequence[float], most: int = MOST_POINTS
) -> tuple[list[float], list[float], list[float], list[float]]:
    """At most ``most`` points: means of neighbours, with the least and the largest of them."""
    count = min(most, len(x))
    ends = [len(x) * k // count for k in range(count + 1)] if count else []
    parts = [slice(*pair) for pair in pairwise(ends)]
    return (
        [sum(x[part]) / len(x[part]) for part in parts],
        [sum(y[part]) / len(y[part]) for part in parts],
        [min(y[part]) for part in parts],
        [max(y[part]) for part in parts],
    )

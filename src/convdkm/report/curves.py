"""Learning curves from the records of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from convdkm.insight.look import short_names
from convdkm.report.charts import Series, line_chart
from convdkm.report.markup import Markup
from convdkm.report.record import Record

SPAN = 3000.0
"""Of the chart of costs, from its largest value down."""
MOST_POINTS = 120
"""Points of a curve of steps; neighbours are averaged."""
PARTS = {"test": "test", "validation": "validation", "train": "training, as it went"}
"""The parts of the data, and what their curves are called."""


def curve_chart(
    title: str, series: Sequence[Series], y_label: str, *, x_label: str = "epoch", **options: Any
) -> Markup | None:
    """A chart of the curves that have points; None if no two points can be joined.

    The options are those of :func:`convdkm.report.charts.line_chart`.
    """
    drawn = [each for each in series if each.x]
    if not any(len(each.x) > 1 for each in drawn):
        return None
    return line_chart(title, drawn, x_label=x_label, y_label=y_label, **options)


def cost_chart(record: Record) -> Markup | None:
    r"""The objective with its sign turned, and the three parts that add up to it.

    .. math:: -\mathcal L = -E_Q[\log P(y|f)] + \tfrac1N\sum_\ell\nu_\ell D_{KL}^\ell
              + \tfrac1N D_{KL}^{head}
    """
    parts = (
        ("all: minus the objective", "objective", -1),
        ("minus the expected log-likelihood", "expected_log_likelihood", -1),
        ("Gram layers: Σ ν KL / N", "kl", 1),
        ("head: KL / N", "head_kl", 1),
    )
    series = [
        step_curve(record, name, label, k, sign) for k, (label, name, sign) in enumerate(parts)
    ]
    # The head's KL starts at zero, which would make the rest of the chart flat.
    large = [y for each in series[:2] for y in each.y]
    log = bool(large) and min(large) > 0
    low = max(min(y for each in series for y in each.y), max(large) / SPAN) if log else None
    title, label = "What a training image costs: the objective and its parts", step_label(record)
    return curve_chart(title, series, "nats per image", x_label=label, log=log, low=low)


def objective_curves(records: Sequence[Record]) -> tuple[list[Series], str]:
    """Minus the objective of several runs, and the label of their x axis.

    They are over epochs; over steps where a run has no whole epoch.
    """
    by_epoch = all(record.steps_per_epoch is not None for record in records if record.steps)
    series = [
        step_curve(record, "objective", record.name, style, -1, by_epoch=by_epoch)
        for style, record in enumerate(records)
    ]
    without_bands = [replace(each, band=None) for each in series]
    return without_bands, "epoch" if by_epoch else "step"


def step_label(record: Record) -> str:
    """What the steps of a run are counted in."""
    return "step" if record.steps_per_epoch is None else "epoch"


def step_curve(
    record: Record, name: str, label: str, style: int = 0, sign: int = 1, *, by_epoch: bool = True
) -> Series:
    """A column of ``steps.csv``, thinned, with the range of neighbouring steps as its band."""
    per_epoch = (record.steps_per_epoch if by_epoch else None) or 1.0
    rows = [row for row in record.steps if name in row]
    steps, values = [row["step"] / per_epoch for row in rows], [sign * row[name] for row in rows]
    x, y, low, high = thinned(steps, values)
    return Series(label, x, y, style, (low, high) if len(rows) > len(x) else None)


def epoch_curve(record: Record, part: str, figure: str, label: str, style: int) -> Series:
    """A figure of a part of the data, epoch by epoch; the error in place of the accuracy."""
    name = f"{part}_{figure}"
    rows = [row for row in record.epochs if name in row]
    values = [1 - row[name] if figure == "accuracy" else row[name] for row in rows]
    return Series(label, [row["epoch"] for row in rows], values, style)


def part_curves(record: Record, figure: str) -> list[Series]:
    """A figure of every part of the data, epoch by epoch."""
    parts = enumerate(PARTS.items())
    return [epoch_curve(record, part, figure, label, style) for style, (part, label) in parts]


def layer_curves(record: Record, figure: str = "kl") -> list[Series]:
    """An instrument of every Gram layer, epoch by epoch; epoch 0 is before training.

    The KL is shown from epoch 1, as it starts at zero or at what ``gram_scale`` makes it.
    """
    epochs = [epoch for epoch in record.layers if epoch or figure != "kl"]
    noted = [pair for layers in record.layers.values() for pair in layers.items()]
    grams = list(dict.fromkeys(name for name, values in noted if values.keys() & {"kl", "spread"}))
    series = []
    for style, (name, label) in enumerate(zip(grams, short_names(grams), strict=True)):
        known = [epoch for epoch in epochs if figure in record.layers[epoch].get(name, {})]
        values = [record.layers[epoch][name][figure] for epoch in known]
        series.append(Series(label, known, values, style))
    return [each for each in series if each.x]


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

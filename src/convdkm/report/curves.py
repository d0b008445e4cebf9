"""Learning curves from the records of runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from convdkm.insight.look import short_names
from convdkm.report.charts import Format, Series, line_chart
from convdkm.report.markup import Markup
from convdkm.report.record import Record
from convdkm.report.scale import short

SPAN = 3000.0
"""Of the chart of costs, from its largest value down."""
MOST_POINTS = 120
"""Points of a curve of steps; neighbours are averaged."""
PARTS = {"test": "test", "validation": "validation", "train": "training, as it went"}
"""The parts of the data, and what their curves are called."""


def curve_chart(
    title: str,
    series: Sequence[Series],
    y_label: str,
    *,
    x_label: str = "epoch",
    form: Format = short,
    log: bool | None = None,
    low: float | None = None,
) -> Markup | None:
    """A chart of the curves that have points; None if no two points can be joined."""
    series = [each for each in series if each.x]
    if not any(len(each.x) > 1 for each in series):
        return None
    return line_chart(
        title,
        series,
        x_label=x_label,
        y_label=y_label,
        y_format=form,
        log=log,
        y_bounds=(low, None),
    )


def cost_chart(record: Record) -> Markup | None:
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
        step_curve(record, name, label, k, sign) for k, (label, name, sign) in enumerate(parts)
    ]
    # The head's KL starts at zero, which would make the rest of the chart flat.
    large = [y for each in series[:2] for y in each.y]
    log = bool(large) and min(large) > 0
    low = max(min(y for each in series for y in each.y), max(large) / SPAN) if log else None
    title = "What a training image costs: the objective and its parts"
    return curve_chart(
        title, series, "nats per image", x_label=step_label(record), log=log, low=low
    )


def objective_curves(records: Sequence[Record]) -> tuple[list[Series], str]:
    """Minus the objective of several runs, and the label of their x axis.

    They are over epochs; over steps where a run has no whole epoch.
    """
    by_epoch = all(record.steps_per_epoch is not None for record in records if record.steps)
    series = [
        step_curve(record, "objective", record.name, style, -1.0, by_epoch=by_epoch, band=False)
        for style, record in enumerate(records)
    ]
    return series, "epoch" if by_epoch else "step"


def step_label(record: Record) -> str:
    """What the steps of a run are counted in."""
    return "step" if record.steps_per_epoch is None else "epoch"


def step_curve(
    record: Record,
    name: str,
    label: str,
    style: int = 0,
    sign: float = 1.0,
    *,
    by_epoch: bool = True,
    band: bool = True,
) -> Series:
    """A column of ``steps.csv``, thinned, with the range of neighbouring steps as its band."""
    per_epoch = (record.steps_per_epoch if by_epoch else None) or 1.0
    rows = [row for row in record.steps if name in row]
    x, y, low, high = thinned(
        [row["step"] / per_epoch for row in rows], [sign * row[name] for row in rows]
    )
    return Series(label, x, y, style, (low, high) if band and len(rows) > len(x) else None)


def epoch_curve(
    record: Record, part: str, figure: str, label: str, style: int, *, error: bool = False
) -> Series:
    """A figure of a part of the data, epoch by epoch; one minus it for an error."""
    name = f"{part}_{figure}"
    rows = [row for row in record.epochs if name in row]
    values = [1 - row[name] if error else row[name] for row in rows]
    return Series(label, [row["epoch"] for row in rows], values, style)


def part_curves(record: Record, figure: str, *, error: bool = False) -> list[Series]:
    """A figure of every part of the data, epoch by epoch."""
    return [
        epoch_curve(record, part, figure, label, style, error=error)
        for style, (part, label) in enumerate(PARTS.items())
    ]


def layer_curves(record: Record, figure: str = "kl") -> list[Series]:
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
    return series


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

"""The page that compares several runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from convdkm.insight.look import short_names
from convdkm.report.charts import Series, line_chart
from convdkm.report.curves import PARTS, epoch_curves, layer_curves, objective_curves
from convdkm.report.findings import Findings
from convdkm.report.heat import diagonal
from convdkm.report.markup import Markup, element
from convdkm.report.page import Section, columns, page, table
from convdkm.report.record import Record
from convdkm.report.rows import Marks, dot_rows
from convdkm.report.run_page import describe, plain
from convdkm.report.scale import percent, short
from convdkm.report.shown_predictions import figure_text
from convdkm.training.metric_names import METRIC_NAMES
from convdkm.training.view import format_duration

LARGE_IS_GOOD = ("accuracy", "log_likelihood")
JUDGED = ("accuracy", "log_likelihood", "brier", "ece")


def compare_page(findings: Sequence[Findings], output: Path) -> str:
    """The page of several runs; ``output`` is where it will be, for the links in it."""
    names = different_names([found.record for found in findings])
    records = [
        replace(found.record, name=name) for found, name in zip(findings, names, strict=True)
    ]
    notes = [
        f"{name}: {note}"
        for found, name in zip(findings, names, strict=True)
        for note in found.missing
    ]
    sections = [
        _figures(findings, names),
        _settings(records),
        _learning(records),
        _layers(records),
        _reliability(findings, names),
        _runs(records, output),
    ]
    shown = [section for section in sections if section is not None]
    return page(f"{len(records)} runs compared", ", ".join(names), shown, notes=notes)


def different_names(records: Sequence[Record]) -> list[str]:
    """Names of runs: of their folders, with so much of the path as tells them apart."""
    paths = [record.folder.resolve() if record.folder else Path(record.name) for record in records]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{record.name} ({k + 1})" for k, record in enumerate(records)]


def _figures(findings: Sequence[Findings], names: Sequence[str]) -> Section:
    figures = [
        found.record.figures
        | (
            {f"test_{name}": value for name, value in found.outcome.metrics.items()}
            if found.outcome is not None
            else {}
        )
        for found in findings
    ]
    head, columns_of = ["run"], []
    for name in JUDGED:
        values = [each.get(f"test_{name}") for each in figures]
        present = [value for value in values if value is not None]
        if present:
            best = max(present) if name in LARGE_IS_GOOD else min(present)
            head.append(METRIC_NAMES[name])
            columns_of.append([_maybe_best(name, value, best) for value in values])
    for title, key, form in (
        ("in training", "train_accuracy", percent),
        ("parameters", "parameters", lambda value: f"{value:,.0f}"),
        ("time", "seconds", format_duration),
    ):
        if any(key in each for each in figures):
            head.append(title)
            columns_of.append([form(each[key]) if key in each else "–" for each in figures])
    head.append("progress")
    columns_of.append([found.record.progress for found in findings])
    rows = [[name, *(column[k] for column in columns_of)] for k, name in enumerate(names)]
    lead = (
        "Of the test images, where nothing else is said; the best of every column is marked."
        " Differences of a few images mean nothing."
    )
    return Section("figures", "Figures", lead, [table(head, rows)])


def _maybe_best(name: str, value: float | None, best: float) -> object:
    text = figure_text(name, value)
    return element("b", text) if value == best else text


def _settings(records: Sequence[Record]) -> Section:
    flat = [record.config.flat() for record in records]
    rows = [
        [name.replace("_", " "), *(plain(each[name]) for each in flat)]
        for name in flat[0]
        if any(each[name] != flat[0][name] for each in flat)
    ]
    if not rows:
        same = element("p", "All settings are the same.")
        return Section("settings", "Settings that differ", None, [same])
    head = ["", *(record.name for record in records)]
    return Section("settings", "Settings that differ", None, [table(head, rows)])


def _learning(records: Sequence[Record]) -> Section | None:
    parts = [part for part in PARTS if any(_has(record, f"{part}_accuracy") for record in records)]
    part = next((part for part in parts if part != "train"), "train")
    costs = objective_curves(records)
    title = "What a training image costs: minus the objective"
    charts = [_overlaid(title, costs.series, costs.x_label, costs.y_label)]
    for title, figure, label, error in (
        (f"Error, {part} images", "accuracy", "share that is wrong", True),
        (f"Log-likelihood, {part} images", "log_likelihood", "nats per image", False),
        (f"Calibration error, {part} images", "ece", "calibration error", False),
    ):
        series = [
            replace(line, label=record.name, style=k)
            for k, record in enumerate(records)
            for line in epoch_curves(record, figure, label, error=error).series
            if line.label == part or (part == "train" and line.label.startswith("training"))
        ]
        charts.append(_overlaid(title, series, "epoch", label, share=error))
    if not any(charts):
        return None
    return Section("learning", "Learning", None, [columns(*charts)])


def _has(record: Record, name: str) -> bool:
    return any(name in row for row in record.epochs)


def _overlaid(
    title: str, series: Sequence[Series], x_label: str, y_label: str, *, share: bool = False
) -> Markup | None:
    series = [replace(each, band=None) for each in series if each.x]
    if not any(len(each.x) > 1 for each in series):
        return None
    form = percent if share else short
    return line_chart(title, series, x_label=x_label, y_label=y_label, y_format=form)


def _layers(records: Sequence[Record]) -> Section | None:
    last = [_last_divergences(record) for record in records]
    names = list(dict.fromkeys(name for layers in last for name in layers))
    if not names:
        return None
    marks = [
        Marks(record.name, [layers.get(name) for name in names], k)
        for k, (record, layers) in enumerate(zip(records, last, strict=True))
        if layers
    ]
    charts: list[Markup | None] = [
        dot_rows(
            "KL of each Gram layer, after the last epoch",
            short_names(names),
            marks,
            label="nats",
            joined=False,
        )
    ]
    totals = []
    for k, record in enumerate(records):
        curves = layer_curves(record).series
        if curves:
            sums = [sum(values) for values in zip(*(each.y for each in curves), strict=False)]
            totals.append(Series(record.name, curves[0].x[: len(sums)], sums, k))
    charts.append(_overlaid("KL of all Gram layers together", totals, "epoch", "nats"))
    lead = "How far the learned Grams have gone from their kernels, before the weight ν."
    return Section("layers", "Divergence by layer", lead, [columns(*charts)])


def _last_divergences(record: Record) -> dict[str, float]:
    layers = record.layers[max(record.layers)] if record.layers else {}
    return {name: values["kl"] for name, values in layers.items() if "kl" in values}


def _reliability(findings: Sequence[Findings], names: Sequence[str]) -> Section | None:
    series = []
    for k, (found, name) in enumerate(zip(findings, names, strict=True)):
        if found.outcome is None:
            continue
        bins = found.outcome.reliability
        filled = (bins.count >= 5).nonzero().flatten().tolist()
        label = f"{name}: calibration error {figure_text('ece', found.outcome.metrics['ece'])}"
        series.append(
            Series(
                label,
                [float(bins.confidence[b]) for b in filled],
                [float(bins.accuracy[b]) for b in filled],
                k,
            )
        )
    if not series:
        return None
    chart = line_chart(
        "Reliability on the test images",
        series,
        x_label="confidence",
        y_label="share that is right",
        log=False,
        x_format=percent,
        y_format=percent,
        x_bounds=(0.0, 1.0),
        y_bounds=(0.0, 1.0),
        extra=diagonal,
    )
    lead = "Bins of five images or more. Below the dashed line a machine is too sure of itself."
    return Section("calibration", "Calibration", lead, [columns(chart)])


def _runs(records: Sequence[Record], output: Path) -> Section:
    rows = []
    for record in records:
        rows.append([record.name, describe(record), _link(record, output)])
    return Section("runs", "The runs", None, [table(["run", "", "page"], rows, css="text")])


def _link(record: Record, output: Path) -> object:
    """To the run's own page, where there is one."""
    if record.folder is None:
        return "–"
    own = record.folder / "report.html"
    if not own.is_file():
        return f"convdkm report {record.folder}"
    try:
        target = Path(os.path.relpath(own.resolve(), output.resolve().parent)).as_posix()
    except ValueError:  # on another drive
        return str(own)
    return element("a", "its own page", href=quote(target))

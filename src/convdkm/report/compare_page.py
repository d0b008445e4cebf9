"""The page that compares several runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from convdkm.insight.look import short_names
from convdkm.report.charts import Series, line_chart
from convdkm.report.curves import PARTS, curve_chart, epoch_curve, layer_curves, objective_curves
from convdkm.report.findings import Findings
from convdkm.report.markup import element
from convdkm.report.page import Section, columns, page, table
from convdkm.report.record import Record
from convdkm.report.rows import Marks, dot_rows
from convdkm.report.run_page import describe, plain
from convdkm.report.scale import percent, short
from convdkm.report.shown_predictions import figure_text
from convdkm.training.metric_names import METRIC_NAMES
from convdkm.training.view import format_duration, format_flops

BEST = {"accuracy": max, "log_likelihood": max, "brier": min, "ece": min}
"""The figures that runs are judged by, and which of the values is the best."""


def compare_page(findings: Sequence[Findings], output: Path) -> str:
    """The page of several runs; ``output`` is where it will be, for the links in it."""
    names = different_names([found.record for found in findings])
    findings = [
        replace(found, record=replace(found.record, name=name))
        for found, name in zip(findings, names, strict=True)
    ]
    records = [found.record for found in findings]
    notes = [f"{found.record.name}: {note}" for found in findings for note in found.missing]
    sections = [
        _figures(findings),
        _settings(records),
        _learning(records),
        _layers(records),
        _reliability(findings),
        _runs(records, output),
    ]
    return page(f"{len(records)} runs compared", ", ".join(names), sections, notes=notes)


def different_names(records: Sequence[Record]) -> list[str]:
    """Names of runs: of their folders, with so much of the path as tells them apart."""
    paths = [record.folder.resolve() if record.folder else Path(record.name) for record in records]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{record.name} ({k + 1})" for k, record in enumerate(records)]


def _figures(findings: Sequence[Findings]) -> Section:
    every = [found.figures for found in findings]
    # Titles and cells of columns; those that no run has are left out.
    shown: dict[str, list[object]] = {"run": [found.record.name for found in findings]}
    for name, choose in BEST.items():
        values = [figures.get(f"test_{name}") for figures in every]
        best = choose((value for value in values if value is not None), default=None)
        if best is not None:
            texts = [figure_text(name, value) for value in values]
            shown[METRIC_NAMES[name]] = [
                element("b", text) if value == best else text
                for text, value in zip(texts, values, strict=True)
            ]
    for title, key, form in (
        ("in training", "train_accuracy", percent),
        ("parameters", "parameters", "{:,.0f}".format),
        ("time", "seconds", format_duration),
        ("CPU time", "cpu_seconds", format_duration),
        ("FLOPs", "flops", format_flops),
    ):
        if any(key in figures for figures in every):
            shown[title] = [form(each[key]) if key in each else "–" for each in every]
    shown["progress"] = [found.record.progress for found in findings]
    lead = (
        "Of the test images, where nothing else is said; the best of every column is marked."
        " Differences of a few images mean nothing."
    )
    rows = list(zip(*shown.values(), strict=True))
    return Section("figures", "Figures", lead, [table(list(shown), rows)])


def _settings(records: Sequence[Record]) -> Section:
    flat = [record.config.flat() for record in records]
    rows = [
        [name.replace("_", " "), *(plain(each[name]) for each in flat)]
        for name in flat[0]
        if any(each[name] != flat[0][name] for each in flat)
    ]
    head = ["", *(record.name for record in records)]
    content = table(head, rows) if rows else element("p", "All settings are the same.")
    return Section("settings", "Settings that differ", None, [content])


def _learning(records: Sequence[Record]) -> Section | None:
    noted = {name for record in records for row in record.epochs for name in row}
    part = next((part for part in PARTS if f"{part}_accuracy" in noted), "train")
    costs, x_label = objective_curves(records)
    title = "What a training image costs: minus the objective"
    charts = [curve_chart(title, costs, "nats per image", x_label=x_label)]
    for title, figure, label in (
        ("Error", "accuracy", "share that is wrong"),
        ("Log-likelihood", "log_likelihood", "nats per image"),
        ("Calibration error", "ece", "calibration error"),
    ):
        form = percent if figure == "accuracy" else short
        series = [epoch_curve(each, part, figure, each.name, k) for k, each in enumerate(records)]
        charts.append(curve_chart(f"{title}, {part} images", series, label, y_format=form))
    return Section("learning", "Learning", None, [columns(*charts)]) if any(charts) else None


def _layers(records: Sequence[Record]) -> Section | None:
    last = []
    for record in records:
        layers = record.layers[max(record.layers)] if record.layers else {}
        last.append({name: each["kl"] for name, each in layers.items() if "kl" in each})
    names = list(dict.fromkeys(name for layers in last for name in layers))
    if not names:
        return None
    marks = [
        Marks(record.name, [layers.get(name) for name in names], k)
        for k, (record, layers) in enumerate(zip(records, last, strict=True))
        if layers
    ]
    title = "KL of each Gram layer, after the last epoch"
    rows = dot_rows(title, short_names(names), marks, label="nats", joined=False)
    totals = []
    for k, record in enumerate(records):
        curves = layer_curves(record)
        if curves:
            sums = [sum(values) for values in zip(*(each.y for each in curves), strict=False)]
            totals.append(Series(record.name, curves[0].x[: len(sums)], sums, k))
    charts = columns(rows, curve_chart("KL of all Gram layers together", totals, "nats"))
    lead = "How far the learned Grams have gone from their kernels, before the weight ν."
    return Section("layers", "Divergence by layer", lead, [charts])


def _reliability(findings: Sequence[Findings]) -> Section | None:
    series = []
    for k, found in enumerate(findings):
        if found.outcome is not None:
            bins = found.outcome.reliability
            filled = bins.count >= 5
            error = figure_text("ece", found.outcome.metrics["ece"])
            label = f"{found.record.name}: calibration error {error}"
            x, y = bins.confidence[filled].tolist(), bins.accuracy[filled].tolist()
            series.append(Series(label, x, y, k))
    if not series:
        return None
    title, labels = "Reliability on the test images", ("confidence", "share that is right")
    chart = line_chart(title, series, x_label=labels[0], y_label=labels[1], shares=True)
    lead = "Bins of five images or more. Below the dashed line a machine is too sure of itself."
    return Section("calibration", "Calibration", lead, [columns(chart)])


def _runs(records: Sequence[Record], output: Path) -> Section:
    rows = [[record.name, describe(record), _link(record, output)] for record in records]
    return Section("runs", "The runs", None, [table(["run", "", "page"], rows, css="text")])


def _link(record: Record, output: Path) -> object:
    """To the run's own page, where there is one."""
    if record.folder is None:
        return "–"
    file = record.folder / "report.html"
    if not file.is_file():
        return f"convdkm report {record.folder}"
    try:
        target = Path(os.path.relpath(file.resolve(), output.resolve().parent)).as_posix()
    except ValueError:  # on another drive
        return str(file)
    return element("a", "its own page", href=quote(target))

"""The page of one run."""

from __future__ import annotations

from functools import partial
from typing import Any

from convdkm.report.brief import brief
from convdkm.report.charts import line_chart
from convdkm.report.curves import (
    Curves,
    cost_curves,
    epoch_curves,
    layer_curves,
    rate_curve,
)
from convdkm.report.findings import Findings
from convdkm.report.markup import Markup, element
from convdkm.report.page import Section, columns, page, table, tiles
from convdkm.report.record import Record
from convdkm.report.scale import percent, short
from convdkm.report.shown_layers import inside_section, layers_section, patches_section
from convdkm.report.shown_predictions import (
    calibration_section,
    confusion_section,
    figure_text,
    images_section,
    metrics_rows,
)
from convdkm.training.metric_names import METRIC_NAMES
from convdkm.training.view import format_duration


def run_page(found: Findings, images: int) -> str:
    """The page of a run.

    Args:
        found: what is known of it.
        images: how many images of each kind to show.
    """
    record, outcome, insight = found.record, found.outcome, found.insight
    sections: list[Section | None] = [
        overview_section(found),
        learning_section(record) if record.has_curves else None,
    ]
    if outcome is not None:
        sections += [calibration_section(outcome, record.figures), confusion_section(outcome)]
        sections += [images_section(outcome, images)] if images else []
    if insight is not None and insight.layers:
        sections += [inside_section(insight, found.num_data), layers_section(insight)]
    if found.run is not None:
        sections.append(patches_section(found.run.model.input.inducing))
    sections.append(settings_section(record))
    shown = [section for section in sections if section is not None]
    return page(record.name, describe(record), shown, notes=found.missing)


def describe(record: Record) -> str:
    """A run in one line."""
    data, model = record.config.data, record.config.model
    inducing = "/".join(map(str, model.inducing))
    nu = model.nu if isinstance(model.nu, tuple) else (model.nu,)
    weights = ", ".join("∞" if each == float("inf") else f"{each:g}" for each in nu)
    state = "" if record.finished else ", not finished"
    return (
        f"{data.dataset}: {inducing} inducing points, ν = {weights},"
        f" {record.progress}{state}, seed {record.config.training.seed}"
    )


def overview_section(found: Findings) -> Section:
    """The figures in large."""
    record = found.record
    figures = record.figures
    if found.outcome is not None:
        figures |= {f"test_{name}": value for name, value in found.outcome.metrics.items()}
    entries: list[tuple[str, str, str]] = []

    def tile(name: str, key: str, remark: str = "", form: Any = short) -> None:
        if key in figures:
            entries.append((name, form(figures[key]), remark))

    of_training = f"training {percent(figures['train_accuracy'])}" if record.metrics else ""
    tile("test accuracy", "test_accuracy", of_training, percent)
    for kind, remark in (
        ("log_likelihood", "nats per image; 0 is perfect"),
        ("ece", "0 is perfect"),
        ("brier", "0 is perfect"),
    ):
        tile(f"test {METRIC_NAMES[kind]}", f"test_{kind}", remark, partial(figure_text, kind))
    tile("training time", "seconds", record.progress, format_duration)
    tile("parameters", "parameters", "", lambda value: f"{value:,.0f}")
    content: list[object] = [tiles(entries) if entries else None, brief(found)]
    parts = [part for part in ("test", "validation", "train") if f"{part}_accuracy" in figures]
    if found.outcome is None and record.metrics:
        content.append(table(["", *parts], metrics_rows(figures, parts)))
    lead = "" if found.run is None else f"The machine after step {found.run.step:,}."
    if not record.finished:
        lead += f" Training is not finished: {record.progress}."
    return Section("overview", "Overview", lead, content)


def learning_section(record: Record) -> Section:
    """Learning curves."""
    charts = [
        _chart("What a training image costs: the objective and its parts", cost_curves(record)),
        _chart(
            "Error",
            epoch_curves(record, "accuracy", "share that is wrong", error=True),
            form=percent,
        ),
        _chart(
            "Log-likelihood of test images",
            _but_train(epoch_curves(record, "log_likelihood", "nats per image")),
        ),
        _chart("Calibration error", epoch_curves(record, "ece", "calibration error")),
        _chart("KL of each Gram layer", layer_curves(record)),
        _chart(
            "Variance of training images that the inducing points explain",
            layer_curves(record, "explained", "share of the variance"),
            form=percent,
        ),
        _chart(
            "Spread of correlations over images",
            layer_curves(record, "spread", "standard deviation"),
        ),
        _chart(
            "Gradient of Gram layers and head beside their parameters",
            layer_curves(record, "gradient", "|gradient| / |parameters|"),
        ),
        _chart("Learning rate", rate_curve(record)),
    ]
    lead = (
        "Training maximises log-likelihood − (Σ ν · KL + head's KL) / N. The first chart turns its"
        " sign: the three lower lines add up to the upper one. A shaded band is the range of"
        " neighbouring steps."
    )
    return Section("learning", "Learning", lead, [columns(*charts)])


def _but_train(curves: Curves) -> Curves:
    """Without the training images, whose log-likelihood is an expectation, another quantity."""
    kept = [series for series in curves.series if not series.label.startswith("training")]
    return Curves(kept, curves.x_label, curves.y_label)


def _chart(title: str, curves: Curves, *, form: Any = short) -> Markup | None:
    if not curves.are_lines:
        return None
    return line_chart(
        title,
        curves.series,
        x_label=curves.x_label,
        y_label=curves.y_label,
        y_format=form,
        log=curves.log,
        y_bounds=(curves.low, None),
    )


def settings_section(record: Record) -> Section:
    """All settings, versions and the machine."""
    tables = []
    for name, values in record.config.model_dump(mode="json").items():
        rows = [[key.replace("_", " "), plain(value)] for key, value in values.items()]
        tables.append(element("div", element("h3", name), table(["", ""], rows, css="text wrap")))
    made = []
    environment = record.environment
    for key, value in environment.items():
        text = plain(value)
        if isinstance(value, dict):
            text = ", ".join(f"{name} {plain(each)}" for name, each in value.items())
        elif key == "command" and isinstance(value, list):
            text = " ".join(map(str, value))
        made.append([key, text])
    if record.folder is not None:
        made.insert(0, ["folder", str(record.folder)])
    content = [
        table(["how it was made", ""], made, css="text wrap") if made else None,
        element("details", element("summary", "All settings"), columns(*tables)),
    ]
    return Section("settings", "Settings", None, content)


def plain(value: object) -> str:
    """A value of a setting, as people write it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(each) for each in value) or "–"
    return f"{value:g}" if isinstance(value, float) else str(value)

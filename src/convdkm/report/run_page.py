"""The page of one run."""

from __future__ import annotations

from functools import partial

from convdkm.report.brief import brief
from convdkm.report.charts import Format
from convdkm.report.curves import (
    cost_chart,
    curve_chart,
    layer_curves,
    part_curves,
    step_curve,
    step_label,
)
from convdkm.report.findings import Findings
from convdkm.report.markup import element
from convdkm.report.page import Section, columns, page, table, tiles
from convdkm.report.record import Record
from convdkm.report.scale import percent
from convdkm.report.shown_layers import inside_section, layers_section, patches_section
from convdkm.report.shown_predictions import (
    calibration_section,
    confusion_section,
    figure_text,
    images_section,
    metrics_table,
)
from convdkm.training.metric_names import METRIC_NAMES
from convdkm.training.view import format_duration


def run_page(found: Findings, images: int) -> str:
    """The page of a run, with so many images of each kind."""
    record, outcome, insight = found.record, found.outcome, found.insight
    sections: list[Section | None] = [
        overview_section(found),
        learning_section(record) if record.has_curves else None,
    ]
    if outcome is not None:
        sections += [calibration_section(outcome, found.figures), confusion_section(outcome)]
        sections += [images_section(outcome, images)] if images else []
    if insight is not None and insight.layers:
        sections += [inside_section(insight, found.num_data), layers_section(insight)]
    if found.run is not None:
        sections.append(patches_section(found.run.model.input.inducing))
    sections.append(settings_section(record))
    return page(record.name, describe(record), sections, notes=found.missing)


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
    record, figures = found.record, found.figures
    of_training = f"training {percent(figures['train_accuracy'])}" if record.metrics else ""
    remarks = {
        "accuracy": of_training,
        "log_likelihood": "nats per image; 0 is perfect",
        "ece": "0 is perfect",
        "brier": "0 is perfect",
    }
    shown: list[tuple[str, str, Format, str]] = [
        (f"test {METRIC_NAMES[kind]}", f"test_{kind}", partial(figure_text, kind), remark)
        for kind, remark in remarks.items()
    ]
    shown += [
        ("training time", "seconds", format_duration, record.progress),
        ("parameters", "parameters", "{:,.0f}".format, ""),
    ]
    entries = [
        (name, form(figures[key]), remark) for name, key, form, remark in shown if key in figures
    ]
    content: list[object] = [tiles(entries) if entries else None, brief(found)]
    if found.outcome is None and record.metrics:
        content.append(metrics_table(figures))
    lead = "" if found.run is None else f"The machine after step {found.run.step:,}."
    if not record.finished:
        lead += f" Training is not finished: {record.progress}."
    return Section("overview", "Overview", lead, content)


def learning_section(record: Record) -> Section:
    """Learning curves."""
    # The log-likelihood of training images is an expectation, another quantity.
    unseen = part_curves(record, "log_likelihood")[:-1]
    rate = step_curve(record, "learning_rate", "rate")
    charts = [
        cost_chart(record),
        curve_chart(
            "Error",
            part_curves(record, "accuracy", error=True),
            "share that is wrong",
            form=percent,
        ),
        curve_chart("Log-likelihood of test images", unseen, "nats per image"),
        curve_chart("Calibration error", part_curves(record, "ece"), "calibration error"),
        curve_chart("KL of each Gram layer", layer_curves(record), "KL, nats"),
        curve_chart(
            "Variance of training images that the inducing points explain",
            layer_curves(record, "explained"),
            "share of the variance",
            form=percent,
        ),
        curve_chart(
            "Spread of correlations over images",
            layer_curves(record, "spread"),
            "standard deviation",
        ),
        curve_chart(
            "Gradient of Gram layers and head beside their parameters",
            layer_curves(record, "gradient"),
            "|gradient| / |parameters|",
        ),
        curve_chart("Learning rate", [rate], "rate", x_label=step_label(record), log=False),
    ]
    lead = (
        "Training maximises log-likelihood − (Σ ν · KL + head's KL) / N. The first chart turns its"
        " sign: the three lower lines add up to the upper one. A shaded band is the range of"
        " neighbouring steps."
    )
    return Section("learning", "Learning", lead, [columns(*charts)])


def settings_section(record: Record) -> Section:
    """All settings, versions and the machine."""
    tables = []
    for name, values in record.config.model_dump(mode="json").items():
        rows = [[key.replace("_", " "), plain(value)] for key, value in values.items()]
        tables.append(element("div", element("h3", name), table(["", ""], rows, css="text wrap")))
    made = [[key, _environment(key, value)] for key, value in record.environment.items()]
    if record.folder is not None:
        made.insert(0, ["folder", str(record.folder)])
    content = [
        table(["how it was made", ""], made, css="text wrap") if made else None,
        element("details", element("summary", "All settings"), columns(*tables)),
    ]
    return Section("settings", "Settings", None, content)


def _environment(key: str, value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(each)}" for name, each in value.items())
    if key == "command" and isinstance(value, list):
        return " ".join(map(str, value))
    return plain(value)


def plain(value: object) -> str:
    """A value of a setting, as people write it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(each) for each in value) or "–"
    return f"{value:g}" if isinstance(value, float) else str(value)

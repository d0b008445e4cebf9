"""The page of one run."""

from __future__ import annotations

from convdkm.insight.look import Insight
from convdkm.report.curves import (
    cost_chart,
    curve_chart,
    layer_curves,
    part_curves,
    step_curve,
    step_label,
)
from convdkm.report.findings import Findings
from convdkm.report.markup import Markup, element
from convdkm.report.outcome import Outcome
from convdkm.report.page import Section, columns, items, page, table
from convdkm.report.record import Record
from convdkm.report.scale import percent, short
from convdkm.report.shown_layers import inside_section, layers_section, patches_section
from convdkm.report.shown_predictions import (
    calibration_section,
    confusion_section,
    figure_text,
    images_section,
    metrics_table,
)
from convdkm.training.metric_names import METRIC_NAMES
from convdkm.training.view import format_duration, format_flops

WELL_CALIBRATED = 0.02
REMARKS = {
    "log_likelihood": "nats per image; 0 is perfect",
    "ece": "0 is perfect",
    "brier": "0 is perfect",
}


def run_page(found: Findings, images: int) -> str:
    """The page of a run, with so many images of each kind."""
    record, outcome, insight = found.record, found.outcome, found.insight
    sections: list[Section | None] = [overview_section(found)]
    sections += [learning_section(record)] if record.has_curves else []
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
    """The figures in large, and what stands out in a few sentences."""
    record, figures = found.record, found.figures
    of_training = f"training {percent(figures['train_accuracy'])}" if record.metrics else ""
    tiles = [
        _tile(f"test {METRIC_NAMES[kind]}", figure_text(kind, figures[f"test_{kind}"]), remark)
        for kind, remark in {"accuracy": of_training, **REMARKS}.items()
        if f"test_{kind}" in figures
    ]
    if "seconds" in figures:
        tiles.append(_tile("training time", format_duration(figures["seconds"]), record.progress))
    if "flops" in figures:
        hours = f"{format_duration(figures['cpu_seconds'])} of CPU time"
        tiles.append(_tile("cost", format_flops(figures["flops"]), hours))
    if "parameters" in figures:
        tiles.append(_tile("parameters", f"{figures['parameters']:,.0f}", ""))
    said = [] if found.outcome is None else _of_predictions(found.outcome)
    said += [] if found.insight is None else _of_layers(found.insight)
    content = [
        element("dl", tiles, class_="tiles") if tiles else None,
        items(said, "brief") if said else None,
        metrics_table(figures) if found.outcome is None and record.metrics else None,
    ]
    lead = "" if found.run is None else f"The machine after step {found.run.step:,}."
    if not record.finished:
        lead += f" Training is not finished: {record.progress}."
    return Section("overview", "Overview", lead, content)


def _tile(name: str, value: str, remark: str) -> Markup:
    below = element("dd", remark, class_="remark") if remark else None
    return element("div", element("dt", name), element("dd", value), below)


def _of_predictions(outcome: Outcome) -> list[str]:
    names, said = outcome.class_names, f"All {len(outcome):,} test images are right."
    for true, taken, times in outcome.frequent_confusions(1):
        often = "once" if times == 1 else f"{times} times"
        said = (
            f"{int(outcome.wrong.sum()):,} of {len(outcome):,} test images are wrong; most often"
            f" {names[true]} is taken for {names[taken]}, {often}."
        )
    error = outcome.metrics["ece"]
    if error < WELL_CALIBRATED:
        return [said, f"It is well calibrated: its confidence is off by {percent(error)}."]
    way = "too sure of itself" if outcome.overconfidence > 0 else "too modest"
    return [said, f"It is {way}: its confidence is off by {percent(round(error, 3))}."]


def _of_layers(insight: Insight) -> list[str]:
    named = zip(insight.labels, insight.layers, strict=True)
    learned = [(name, layer) for name, layer in named if layer.kl]
    if not learned:
        return ["ν is infinite: no layer learns, and every Gram is its kernel."]
    layers = [layer for _, layer in learned]
    name, most = max(learned, key=lambda pair: pair[1].shape_kl / pair[1].num_inducing)
    said = [
        f"The layer that has changed its kernel's shape most, for its size, is {name}"
        f" ({short(most.shape_kl)} nats); its effective rank went from {most.kernel_rank:.1f} to"
        f" {most.gram_rank:.1f} of {most.num_inducing}."
    ]
    scale = sum(layer.nu * layer.scale_kl for layer in layers)
    total = sum(layer.nu * layer.kl for layer in layers)
    if total and scale > 0.5 * total:
        said.append(
            f"{percent(round(scale / total, 3))} of what the Gram layers pay is for the scale of"
            " their Grams, not for their shape."
        )
    last = layers[-1]
    if last.gram_alignment is not None and last.kernel_alignment is not None:
        said.append(
            f"In the last Gram layer the alignment with the classes goes from"
            f" {last.kernel_alignment:.2f} (kernel) to {last.gram_alignment:.2f} (learned Gram)."
        )
    return said


def learning_section(record: Record) -> Section:
    """Learning curves."""
    # The log-likelihood of training images is an expectation, another quantity.
    unseen = part_curves(record, "log_likelihood")[:-1]
    rate, steps = step_curve(record, "learning_rate", "rate"), step_label(record)
    explained, wrong = layer_curves(record, "explained"), part_curves(record, "accuracy")
    charts = [
        cost_chart(record),
        curve_chart("Error", wrong, "share that is wrong", y_format=percent),
        curve_chart("Log-likelihood of test images", unseen, "nats per image"),
        curve_chart("Calibration error", part_curves(record, "ece"), "calibration error"),
        curve_chart("KL of each Gram layer", layer_curves(record), "KL, nats"),
        curve_chart(
            "Variance of training images that the inducing points explain",
            explained,
            "share of the variance",
            y_format=percent,
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
        curve_chart("Learning rate", [rate], "rate", x_label=steps, log=False),
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
    made = [] if record.folder is None else [["folder", str(record.folder)]]
    for key, value in record.environment.items():
        words = key == "command" and isinstance(value, list)
        made.append([key, " ".join(map(str, value)) if words else plain(value)])
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
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(each) for each in value) or "–"
    return f"{value:g}" if isinstance(value, float) else str(value)

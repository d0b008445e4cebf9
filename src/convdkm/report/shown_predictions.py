"""Sections about predictions: calibration, confusions, images."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from convdkm.report import svg
from convdkm.report.charts import (
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    area,
    diagonal,
    drawing,
    figure,
    grid,
    keys,
)
from convdkm.report.markup import Markup, element, together
from convdkm.report.outcome import Outcome, wilson
from convdkm.report.page import Section, columns, table
from convdkm.report.pictures import image_picture, matrix_picture
from convdkm.report.rows import heat_map
from convdkm.report.scale import Axis, percent, short
from convdkm.training.metric_names import metric_rows
from convdkm.training.metrics import Reliability

MOST_NAMED = 20
"""Classes up to which the confusion matrix has names and numbers."""
LISTED = 6
"""Rows of the tables of confusions."""
GUESSES = 3
"""Classes shown below an image."""


def figure_text(name: str, value: float | None) -> str:
    """A figure as it is written in tables."""
    if name == "accuracy" or value is None:
        return percent(value)
    return f"{value:.4f}".replace("-", "−")


def metrics_table(figures: Mapping[str, float]) -> Markup:
    """One row for each kind of figure, one column for each part of the data."""
    parts, rows = metric_rows(figures, figure_text)
    return table(["", *parts], rows)


def reliability_diagram(title: str, bins: Reliability) -> Markup:
    """Accuracy against confidence, with 95% intervals, over how many images are in each bin."""
    left, right, bottom, strip = LEFT, WIDTH - RIGHT, 262.0, 52.0
    x_axis, y_axis = Axis(0, 1, left, right), Axis(0, 1, bottom, TOP)
    edges, most = bins.edges.tolist(), float(bins.count.max())
    base = bottom + 44 + strip
    marks = []
    for k, count in enumerate(bins.count.tolist()):
        if not count:
            continue
        confidence, accuracy = float(bins.confidence[k]), float(bins.accuracy[k])
        low, high = wilson(round(accuracy * count), count)
        said = (
            f"confidence {percent(edges[k])} to {percent(edges[k + 1])}: {count:,} images, mean"
            f" confidence {percent(confidence)}, right {percent(accuracy)}"
        )
        start, width = x_axis(edges[k]) + 1, x_axis(edges[k + 1]) - x_axis(edges[k]) - 2
        x, y = x_axis(confidence), y_axis(accuracy)
        height = max(strip * math.sqrt(count / most), 1.0)
        marks += [
            svg.rect(start, y, width, bottom - y, "fill faint s0", hint=said),
            svg.line(x, y_axis(low), x, y_axis(high), "whisker"),
            svg.circle(x, y, 4.5, "dot s0", hint=said),
            svg.rect(start, base - height, width, height, "fill s2", rx=1, hint=said),
        ]
    below = f"images in each bin (square root; at most {short(most)})"
    labels = "confidence: probability of the class", "share that is right"
    chart = drawing(
        title,
        WIDTH,
        base + 22,
        grid(x_axis, y_axis, forms=(percent, percent), labels=labels),
        diagonal(x_axis, y_axis),
        marks,
        svg.line(left, base, right, base, "axis"),
        svg.text(below, (left + right) / 2, base + 16),
    )
    entries = [(area(0), "share that is right, with its 95% interval"), (area(2), "images")]
    return figure(title, chart, below=keys(entries))


def calibration_section(outcome: Outcome, figures: Mapping[str, float]) -> Section:
    """Reliability diagram, calibration error, and all figures."""
    gap = outcome.overconfidence
    lead = together(
        "Is it right as often as it says? On the dashed line, yes; below it the machine is too"
        " sure, above it too modest. The expected calibration error, the mean distance from that"
        " line, is ",
        element("b", figure_text("ece", outcome.metrics["ece"])),
        f"; on average the machine is {percent(abs(gap))} {'more' if gap > 0 else 'less'}"
        " confident than it is right.",
    )
    title = f"Reliability on {len(outcome):,} test images"
    diagram = reliability_diagram(title, outcome.reliability)
    return Section("calibration", "Calibration", lead, [columns(diagram, metrics_table(figures))])


def confusion_section(outcome: Outcome) -> Section:
    """Which classes are taken for which."""
    counts, names = outcome.confusion, outcome.class_names
    of_class = counts / counts.sum(1, keepdim=True).clamp(min=1)
    shares = of_class.tolist()
    title = "Confusion matrix: rows are the truth, columns what was predicted"
    if len(names) <= MOST_NAMED:
        times = counts.tolist()
        mistakes = of_class.clone().fill_diagonal_(0)
        mistakes = 0.9 * (mistakes / (mistakes.max() or 1.0)).sqrt()
        picture = heat_map(
            title,
            names,
            (mistakes + of_class.diagonal().diag()).tolist(),
            text=lambda i, j: str(times[i][j] or ""),
            hint=lambda i, j: (
                f"{names[i]} taken for {names[j]}: {times[i][j]} times, {percent(shares[i][j])}"
            ),
            labels=("truth", "prediction"),
            css=lambda i, j: "fill s2" if i == j else "fill s1",
        )
    else:
        address = matrix_picture(of_class.sqrt(), 0, 1)
        picture = figure(title, element("img", src=address, alt=title, class_="big"))
    rows = [
        [f"{names[true]} → {names[taken]}", str(count), percent(shares[true][taken])]
        for true, taken, count in outcome.frequent_confusions(LISTED)
    ]
    images = counts.sum(1).tolist()
    present = [k for k, count in enumerate(images) if count]
    hardest = [
        [names[k], f"{images[k]:,}", percent(shares[k][k])]
        for k in sorted(present, key=lambda k: shares[k][k])[:LISTED]
    ]
    side = [
        table(["most frequent confusions", "times", "of the class"], rows) if rows else None,
        table(["hardest classes", "images", "right"], hardest),
    ]
    lead = (
        f"{int(outcome.wrong.sum()):,} of {len(outcome):,} test images are wrong. Mistakes have a"
        " scale of colour of their own, up to the most frequent, so that rare ones are seen."
    )
    return Section("confusions", "Confusions", lead, [columns(picture, element("div", side))])


def images_section(outcome: Outcome, count: int) -> Section:
    """The images that the machine is least sure of, and those it is wrongly sure of."""
    galleries = (
        (
            "Most confidently wrong",
            "Mistakes made with the largest probability: a hard image, a wrong label, or"
            " something the machine has not learned.",
            outcome.confidently_wrong(count),
        ),
        (
            "Most uncertain",
            "Predictions of the largest entropy H, in nats. Of it, the mutual information I is what"
            " knowing the top-layer functions would remove: where it is large, more data of this"
            " kind would help; where it is small, the image itself is ambiguous.",
            outcome.most_uncertain(count),
        ),
    )
    content = [
        (
            element("h3", title),
            element("p", text, class_="lead"),
            element("div", [_image(outcome, index) for index in chosen], class_="gallery"),
        )
        for title, text, chosen in galleries
        if chosen
    ]
    lead = "Below each image its most probable classes; the true one is green and bold."
    return Section("images", "Images", lead, content)


def _probability(value: float) -> str:
    if value < 0.0005:
        return "<0.1%"
    return f"{100 * value:.0f}%" if 0.1 <= value < 0.9 else f"{100 * value:.1f}%"


def _image(outcome: Outcome, index: int) -> Markup:
    names, true = outcome.class_names, int(outcome.labels[index])
    probs = outcome.prediction.probs[index]
    best = torch.argsort(probs, descending=True, stable=True)[:GUESSES].tolist()
    shown = best if true in best else [*best[:-1], true]
    entropy = float(outcome.prediction.entropy[index])
    doubt = f"H {entropy:.2f}"
    if outcome.prediction.expected_entropy is not None:
        doubt += f" · I {float(outcome.prediction.mutual_information[index]):.2f}"
    said = f"test image {index}: {names[true]}, taken for {names[best[0]]}"
    guesses = [
        element(
            "div",
            element("i", style=f"width:{max(float(probs[k]) * 100, 1):.0f}%"),
            element("span", names[k], title=names[k]),
            element("span", _probability(float(probs[k]))),
            class_="guess true" if k == true else "guess",
        )
        for k in shown
    ]
    return element(
        "figure",
        element("img", src=image_picture(outcome.images[index]), alt=said, title=said),
        element("figcaption", guesses, element("small", doubt)),
    )

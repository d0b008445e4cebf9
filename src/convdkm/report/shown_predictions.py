"""Sections about predictions: calibration, confusions, images."""

from __future__ import annotations

import torch

from convdkm.report.charts import figure
from convdkm.report.heat import heat_map, reliability_diagram
from convdkm.report.markup import Markup, element, together
from convdkm.report.outcome import Outcome
from convdkm.report.page import Section, columns, table
from convdkm.report.pictures import VIRIDIS, image_picture, matrix_picture
from convdkm.report.scale import percent
from convdkm.training.metric_names import METRIC_NAMES

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


def metrics_rows(figures: dict[str, float], parts: list[str]) -> list[list[str]]:
    """One row for each kind of figure, one column for each part of the data."""
    return [
        [title, *(figure_text(name, figures.get(f"{part}_{name}")) for part in parts)]
        for name, title in METRIC_NAMES.items()
        if any(f"{part}_{name}" in figures for part in parts)
    ]


def calibration_section(outcome: Outcome, figures: dict[str, float]) -> Section:
    """Reliability diagram, calibration error, and all figures."""
    error = outcome.metrics["ece"]
    figures = figures | {f"test_{name}": value for name, value in outcome.metrics.items()}
    parts = [part for part in ("test", "validation", "train") if f"{part}_accuracy" in figures]
    gap = float(outcome.prediction.probs.amax(1).double().mean()) - outcome.metrics["accuracy"]
    way = "more" if gap > 0 else "less"
    lead = together(
        "Is it right as often as it says? On the dashed line, yes; below it the machine is too"
        " sure, above it too modest. The expected calibration error, the mean distance from that"
        " line, is ",
        element("b", figure_text("ece", error)),
        f"; on average the machine is {percent(abs(gap))} {way} confident than it is right.",
    )
    return Section(
        "calibration",
        "Calibration",
        lead,
        [
            columns(
                reliability_diagram(
                    f"Reliability on {len(outcome):,} test images", outcome.reliability
                ),
                table(["", *parts], metrics_rows(figures, parts)),
            )
        ],
    )


def confusion_section(outcome: Outcome) -> Section:
    """Which classes are taken for which."""
    counts, names = outcome.confusion, outcome.class_names
    of_class = counts.sum(1, keepdim=True).clamp(min=1)
    shares = (counts / of_class).tolist()
    most = float((counts / of_class).fill_diagonal_(0).max()) or 1.0
    wrong = int(outcome.wrong.sum())
    title = "Confusion matrix: rows are the truth, columns what was predicted"
    if len(names) <= MOST_NAMED:
        numbers = counts.tolist()
        picture = heat_map(
            title,
            names,
            [
                [share if i == j else 0.9 * (share / most) ** 0.5 for j, share in enumerate(row)]
                for i, row in enumerate(shares)
            ],
            text=lambda i, j: str(numbers[i][j]) if numbers[i][j] else "",
            said=lambda i, j: (
                f"{names[i]} taken for {names[j]}: {numbers[i][j]} times, {percent(shares[i][j])}"
            ),
            labels=("truth", "prediction"),
            css=lambda i, j: "fill s2" if i == j else "fill s1",
        )
    else:
        shade = torch.tensor(shares).sqrt()
        image = element("img", src=matrix_picture(shade, 0, 1, VIRIDIS), alt=title, class_="big")
        picture = figure(title, image)
    rows = [
        [f"{names[true]} → {names[taken]}", str(times), percent(shares[true][taken])]
        for true, taken, times in outcome.frequent_confusions(LISTED)
    ]
    classes = [
        [name, f"{int(counts[k].sum()):,}", percent(shares[k][k])]
        for k, name in enumerate(names)
        if int(counts[k].sum())
    ]
    hardest = sorted(range(len(classes)), key=lambda k: float(classes[k][2].rstrip("%")))[:LISTED]
    side = [
        table(["most frequent confusions", "times", "of the class"], rows) if rows else None,
        table(["hardest classes", "images", "right"], [classes[k] for k in hardest]),
    ]
    lead = (
        f"{wrong:,} of {len(outcome):,} test images are wrong. Mistakes have a scale of colour of"
        " their own, up to the most frequent, so that rare ones are seen."
    )
    return Section("confusions", "Confusions", lead, [columns(picture, element("div", side))])


def images_section(outcome: Outcome, count: int) -> Section:
    """The images that the machine is least sure of, and those it is wrongly sure of."""
    uncertain, wrong = outcome.most_uncertain(count), outcome.confidently_wrong(count)
    content: list[object] = []
    if wrong:
        content += [
            element("h3", "Most confidently wrong"),
            element(
                "p",
                "Mistakes made with the largest probability: a hard image, a wrong label, or"
                " something the machine has not learned.",
                class_="lead",
            ),
            element("div", [_image(outcome, index) for index in wrong], class_="gallery"),
        ]
    content += [
        element("h3", "Most uncertain"),
        element(
            "p",
            "Predictions of the largest entropy H, in nats. Of it, the mutual information I is what"
            " knowing the top-layer functions would remove: where it is large, more data of this"
            " kind would help; where it is small, the image itself is ambiguous.",
            class_="lead",
        ),
        element("div", [_image(outcome, index) for index in uncertain], class_="gallery"),
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

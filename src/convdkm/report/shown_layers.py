"""Sections about the machine: what each layer learned, what it paid, how alike layers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from convdkm.insight.look import Insight, LayerInsight, short_names
from convdkm.insight.similarity import cluster_order, correlation
from convdkm.report.charts import Series, line_chart
from convdkm.report.markup import Markup, element, together
from convdkm.report.page import Section, columns, table
from convdkm.report.pictures import (
    CIVIDIS,
    VIRIDIS,
    matrix_picture,
    patch_pictures,
    ramp_picture,
)
from convdkm.report.rows import Marks, bar_rows, dot_rows, heat_map
from convdkm.report.scale import percent, short

MOST_PATCHES = 256
ROUNDING = 1e-6
"""A difference of correlations that is none."""
MOST_EIGENVALUES = 128
"""Of a spectrum; of a larger one every second, third, … is drawn."""
MOST_ENTRIES = 1_000_000
"""Of a matrix, that its scale of colours is made by."""


def inside_section(insight: Insight, num_data: int | None) -> Section:
    """All Gram layers beside each other."""
    layers, names = insight.layers, insight.labels
    paid = [layer.nu * layer.shape_kl if layer.kl else 0.0 for layer in layers]
    scaled = [layer.nu * layer.scale_kl if layer.kl else 0.0 for layer in layers]
    shape = Marks("for another shape", paid, 0)
    costs = [
        replace(shape, values=[*paid, None]),
        Marks("for another scale", [*scaled, None], 5),
        Marks("the head's own KL", [None] * len(names) + [insight.head_kl], 3),
    ]
    title = "Of it, what was paid for another shape"
    charts = [
        bar_rows("What each layer pays: ν · KL(G‖K)", [*names, "head"], costs, label="nats"),
        bar_rows(title, names, [shape], label="nats") if any(paid) else None,
        dot_rows(
            "Effective rank: how many directions are used",
            names,
            _before_and_after(layers, "rank"),
            label="exp(entropy of the eigenvalues)",
        ),
    ]
    if any(layer.explained is not None for layer in layers):
        title = "Variance of the images that the inducing points explain"
        label = "share of the variance, mean over all places"
        marks = [Marks("explained", [layer.explained for layer in layers], 0)]
        charts.append(dot_rows(title, names, marks, label=label, form=percent, bounds=(0.0, 1.0)))
    if any(layer.gram_alignment is not None for layer in layers):
        title, label = "Alignment with the classes", "CKA with the kernel “same class”"
        marks = _before_and_after(layers, "alignment")
        charts.append(dot_rows(title, names, marks, label=label, bounds=(0.0, 1.0)))
    if insight.similarity is not None:
        charts.append(_similarity(insight.names, insight.similarity.tolist()))
    source = f" Figures of data come from {insight.num_images} images."
    lead = together(
        "A deep kernel machine has no features: every layer learns a Gram matrix G of its inducing"
        " points, which starts at the kernel K of the layer below and may leave it, at the price of"
        " ν · KL. The price splits exactly into that of another ",
        element("b", "scale"),
        " and that of another ",
        element("b", "shape"),
        f"; the shape is what was learned.{source if insight.num_images else ''}",
    )
    content = [columns(*charts), _layer_table(insight, num_data)]
    return Section("inside", "Inside the machine", lead, content)


def _before_and_after(layers: Sequence[LayerInsight], figure: str) -> list[Marks]:
    """A figure of every layer's kernel and of its learned Gram."""
    return [
        Marks("kernel K", [getattr(layer, f"kernel_{figure}") for layer in layers], 1),
        Marks("learned Gram G", [getattr(layer, f"gram_{figure}") for layer in layers], 0),
    ]


def _figures(layer: LayerInsight) -> list[str]:
    """Inducing points, ν, KL, the KL of the shape, scale, rank and variance explained."""
    return [
        str(layer.num_inducing),
        short(layer.nu) if layer.nu < float("inf") else "∞",
        short(layer.kl),
        short(layer.shape_kl),
        short(layer.scale),
        f"{layer.kernel_rank:.1f} → {layer.gram_rank:.1f}",
        percent(None if layer.explained is None else round(layer.explained, 3)),
    ]


def _layer_table(insight: Insight, num_data: int | None) -> Markup:
    head = ["layer", "points", "ν", "KL", "of it shape", "G/K scale", "rank K → G", "explained"]
    named = zip(insight.labels, insight.layers, strict=True)
    rows = [[name, *_figures(layer)] for name, layer in named]
    if num_data:
        head.append("paid per image")
        for row, layer in zip(rows, insight.layers, strict=True):
            row.append(short(layer.nu * layer.kl / num_data) if layer.kl else "0")
    return table(head, rows)


def _similarity(compared: list[str], values: list[list[float]]) -> Markup:
    names = short_names(compared)
    roomy = len(names) <= 12

    def two_digits(i: int, j: int) -> str:
        text = f"{min(values[i][j], 1.0):.2f}".replace("1.00", "1").replace("0.", ".")
        return text.replace("-", "−") if roomy else ""

    return heat_map(
        "Similarity of layers: CKA of the images under their Grams",
        names,
        values,
        text=two_digits,
        hint=lambda i, j: f"{names[i]} and {names[j]}: {values[i][j]:.3f}",
    )


def layers_section(insight: Insight) -> Section:
    """Every Gram layer: its kernel, its Gram, and their difference."""
    lead = together(
        "For each layer the kernel K",
        element("sub", "ii"),
        " that comes in, the Gram G",
        element("sub", "ii"),
        " that was learned, and their difference, as correlations: every entry is divided by the"
        " standard deviations of its row and column, since the overall scale is told apart (G/K)."
        " Inducing points are in the order of a clustering of G, the same in all three: bright"
        " blocks are groups that the layer holds to be alike, and the difference shows where it has"
        " drawn them together (yellow) or apart (blue). A stretch above 1 is a direction that"
        " learning has made larger than the others.",
    )
    cards = map(_card, insight.labels, insight.layers)
    return Section("layers", "Kernels and learned Grams", lead, list(cards))


def _card(name: str, layer: LayerInsight) -> Markup:
    order = torch.tensor(layer.order)
    kernel = correlation(layer.kernel)[order][:, order]
    gram = correlation(layer.gram)[order][:, order]
    low = min(float(kernel.min()), float(gram.min()), 0.0)
    change = gram - kernel
    reach = float(torch.quantile(change.abs().flatten()[:MOST_ENTRIES], 0.98))
    reach = reach if reach > ROUNDING else 1.0
    matrices = [
        _matrix(name, "K", kernel, (low, 1.0), VIRIDIS),
        _matrix(name, "G", gram, (low, 1.0), VIRIDIS),
        _matrix(name, "G − K", change, (-reach, reach), CIVIDIS),
    ]
    points, nu, kl, shape, scale, rank, explained = _figures(layer)
    facts = {"inducing points": points, "ν": nu, "KL": f"{kl} nats"}
    facts |= {"for the shape": f"{shape} nats", "G/K": scale, "rank": rank}
    facts |= {} if layer.explained is None else {"explained": explained}
    said = [element("span", f"{what} ", element("b", value)) for what, value in facts.items()]
    pictures = element("div", matrices, class_="matrices")
    return element(
        "article",
        element("h3", name),
        element("div", said, class_="facts"),
        element("div", pictures, _spectra(layer), class_="layer"),
        class_="card",
    )


def _matrix(
    layer: str, title: str, matrix: torch.Tensor, bounds: tuple[float, float], stops: str
) -> Markup:
    low, high = bounds
    ramp = element(
        "div",
        f"{low:.2g}".replace("-", "−"),
        element("img", src=ramp_picture(stops), alt="colours from low to high"),
        f"{high:.2g}",
        class_="ramp",
    )
    alt = f"{layer}: {title}, as colours"
    picture = element("img", src=matrix_picture(matrix, low, high, stops), alt=alt)
    return element("figure", element("figcaption", title), picture, ramp)


def _spectra(layer: LayerInsight) -> Markup:
    step = -(-layer.num_inducing // MOST_EIGENVALUES)
    places = [float(k + 1) for k in range(0, layer.num_inducing, step)]
    shown = {
        "learned Gram G": layer.gram_spectrum / layer.gram_spectrum.sum(),
        "kernel K": layer.kernel_spectrum / layer.kernel_spectrum.sum(),
    }
    if layer.kl:
        shown["stretch: K⁻¹G over its mean"] = layer.stretches / layer.stretches.mean()
    series = [
        Series(label, places, values[::step].clamp(min=1e-9).tolist(), style)
        for style, (label, values) in enumerate(shown.items())
    ]
    return line_chart(
        "Eigenvalues as shares of their sum, and stretches",
        series,
        x_label="rank of the eigenvalue",
        y_label="share, or stretch",
        log=True,
        height=215.0,
    )


def patches_section(inducing: torch.Tensor) -> Section | None:
    """The inducing patches as pictures; None where they are no pictures."""
    if inducing.ndim != 4 or inducing.shape[1] not in (1, 3):
        return None
    flat = inducing.detach().flatten(1)
    order = cluster_order(flat @ flat.T)[:MOST_PATCHES]
    pictures = patch_pictures(inducing.detach()[order])
    side = "×".join(map(str, inducing.shape[2:]))
    zero = int((flat == 0).all(1).sum())
    blank = f" {zero} of them are zero, as blank places of images are." if zero else ""
    few = "" if len(order) == len(inducing) else f" The first {len(order)} are shown."
    lead = (
        f"The {len(inducing)} learned patches of {side} pixels that the first layer compares every"
        " place of an image with, after whitening, as the machine sees them. Each has its own"
        " scale, on which a middle grey is zero; the bar below is its size beside the largest, and"
        f" neighbours are alike.{blank}{few}"
    )
    sizes = flat.square().mean(1).sqrt()
    drawn = []
    for place, picture in zip(order, pictures, strict=True):
        share = float(sizes[place] / sizes.max()) if sizes.max() > 0 else 0.0
        said = f"inducing patch {place}, root mean square {short(float(sizes[place]))}"
        bar = element("i", style=f"width:{max(100 * share, 2):.0f}%")
        drawn.append(element("div", element("img", src=picture, alt=said, title=said), bar))
    return Section("patches", "Inducing patches", lead, [element("div", drawn, class_="patches")])

"""Sections about the machine: what each layer learned, what it paid, how alike layers are."""

from __future__ import annotations

import torch

from convdkm.insight.look import Insight, LayerInsight, short_names
from convdkm.insight.similarity import cluster_order, correlation
from convdkm.report.charts import Series, line_chart
from convdkm.report.heat import heat_map
from convdkm.report.markup import Markup, element, together
from convdkm.report.page import Section, columns, table
from convdkm.report.pictures import (
    CIVIDIS,
    VIRIDIS,
    matrix_picture,
    patch_pictures,
    ramp_picture,
)
from convdkm.report.rows import Marks, bar_rows, dot_rows
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
    layers = insight.layers
    names = short_names([layer.name for layer in layers])
    paid = [layer.nu * layer.shape_kl if layer.kl else 0.0 for layer in layers]
    scaled = [layer.nu * layer.scale_kl if layer.kl else 0.0 for layer in layers]
    charts: list[object] = [
        bar_rows(
            "What each layer pays: ν · KL(G‖K)",
            [*names, "head"],
            [
                Marks("for another shape", [*paid, None], 0),
                Marks("for another scale", [*scaled, None], 5),
                Marks("the head's own KL", [None] * len(names) + [insight.head_kl], 3),
            ],
            label="nats",
        ),
        bar_rows(
            "Of it, what was paid for another shape",
            names,
            [Marks("for another shape", paid, 0)],
            label="nats",
        )
        if any(paid)
        else None,
        dot_rows(
            "Effective rank: how many directions are used",
            names,
            [
                Marks("kernel K", [layer.kernel_rank for layer in layers], 1),
                Marks("learned Gram G", [layer.gram_rank for layer in layers], 0),
            ],
            label="exp(entropy of the eigenvalues)",
        ),
    ]
    if any(layer.explained is not None for layer in layers):
        charts.append(
            dot_rows(
                "Variance of the images that the inducing points explain",
                names,
                [Marks("explained", [layer.explained for layer in layers], 0)],
                label="share of the variance, mean over all places",
                form=percent,
                bounds=(0.0, 1.0),
            )
        )
    if any(layer.gram_alignment is not None for layer in layers):
        charts.append(
            dot_rows(
                "Alignment with the classes",
                names,
                [
                    Marks("kernel K", [layer.kernel_alignment for layer in layers], 1),
                    Marks("learned Gram G", [layer.gram_alignment for layer in layers], 0),
                ],
                label="CKA with the kernel “same class”",
                bounds=(0.0, 1.0),
            )
        )
    if insight.similarity is not None:
        charts.append(_similarity(insight))
    lead = together(
        "A deep kernel machine has no features: every layer learns a Gram matrix G of its inducing"
        " points, which starts at the kernel K of the layer below and may leave it, at the price of"
        " ν · KL. The price splits exactly into that of another ",
        element("b", "scale"),
        " and that of another ",
        element("b", "shape"),
        f"; the shape is what was learned. Figures of data come from {insight.num_images} images."
        if insight.num_images
        else "; the shape is what was learned.",
    )
    content = [columns(*charts), _layer_table(insight, names, num_data)]
    return Section("inside", "Inside the machine", lead, content)


def _layer_table(insight: Insight, names: list[str], num_data: int | None) -> Markup:
    head = ["layer", "points", "ν", "KL", "of it shape", "G/K scale", "rank K → G", "explained"]
    head += ["paid per image"] if num_data else []
    rows = []
    for name, layer in zip(names, insight.layers, strict=True):
        row = [
            name,
            str(layer.num_inducing),
            short(layer.nu) if layer.nu < float("inf") else "∞",
            short(layer.kl),
            short(layer.shape_kl),
            short(layer.scale),
            f"{layer.kernel_rank:.1f} → {layer.gram_rank:.1f}",
            percent(None if layer.explained is None else round(layer.explained, 3)),
        ]
        if num_data:
            row.append(short(layer.nu * layer.kl / num_data) if layer.kl else "0")
        rows.append(row)
    return table(head, rows)


def _similarity(insight: Insight) -> Markup:
    assert insight.similarity is not None
    inner = short_names([name for name in insight.names if name.startswith("body")])
    outer = [name for name in insight.names if not name.startswith("body")]
    names = [outer[0], *inner, *outer[1:]]
    values = insight.similarity.tolist()
    roomy = len(names) <= 12
    return heat_map(
        "Similarity of layers: CKA of the images under their Grams",
        names,
        values,
        text=lambda i, j: _two_digits(values[i][j]) if roomy else "",
        said=lambda i, j: f"{names[i]} and {names[j]}: {values[i][j]:.3f}",
    )


def _two_digits(value: float) -> str:
    return "1" if value > 0.995 else f"{value:.2f}".replace("0.", ".").replace("-", "−")


def layers_section(insight: Insight) -> Section:
    """Every Gram layer: its kernel, its Gram, and their difference."""
    names = short_names([layer.name for layer in insight.layers])
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
    cards = [_card(name, layer) for name, layer in zip(names, insight.layers, strict=True)]
    return Section("layers", "Kernels and learned Grams", lead, cards)


def _card(name: str, layer: LayerInsight) -> Markup:
    order = torch.tensor(layer.order)
    kernel = correlation(layer.kernel)[order][:, order]
    gram = correlation(layer.gram)[order][:, order]
    low = min(float(kernel.min()), float(gram.min()), 0.0)
    change = gram - kernel
    reach = float(torch.quantile(change.abs().flatten()[:MOST_ENTRIES], 0.98))
    reach = reach if reach > ROUNDING else 1.0
    matrices = [
        _matrix(f"{name}: {what}", what, matrix, bounds, stops)
        for what, matrix, bounds, stops in (
            ("K", kernel, (low, 1.0), VIRIDIS),
            ("G", gram, (low, 1.0), VIRIDIS),
            ("G − K", change, (-reach, reach), CIVIDIS),
        )
    ]
    facts = [
        ("inducing points", str(layer.num_inducing)),
        ("ν", short(layer.nu) if layer.nu < float("inf") else "∞"),
        ("KL", f"{short(layer.kl)} nats"),
        ("for the shape", f"{short(layer.shape_kl)} nats"),
        ("G/K", short(layer.scale)),
        ("rank", f"{layer.kernel_rank:.1f} → {layer.gram_rank:.1f}"),
    ]
    if layer.explained is not None:
        facts.append(("explained", percent(round(layer.explained, 3))))
    said = [element("span", f"{what} ", element("b", value)) for what, value in facts]
    return element(
        "article",
        element("h3", name),
        element("div", said, class_="facts"),
        element(
            "div",
            element("div", matrices, class_="matrices"),
            _spectra(layer),
            class_="layer",
        ),
        class_="card",
    )


def _matrix(
    alt: str, title: str, matrix: torch.Tensor, bounds: tuple[float, float], stops: str
) -> Markup:
    low, high = bounds
    ramp = element(
        "div",
        f"{low:.2g}".replace("-", "−"),
        element("img", src=ramp_picture(stops), alt="colours from low to high"),
        f"{high:.2g}",
        class_="ramp",
    )
    picture = element("img", src=matrix_picture(matrix, low, high, stops), alt=f"{alt}, as colours")
    return element("figure", element("figcaption", title), picture, ramp)


def _spectra(layer: LayerInsight) -> Markup:
    step = -(-layer.num_inducing // MOST_EIGENVALUES)
    places = [float(k + 1) for k in range(0, layer.num_inducing, step)]
    series = []
    for style, (label, spectrum) in enumerate(
        (("learned Gram G", layer.gram_spectrum), ("kernel K", layer.kernel_spectrum))
    ):
        shares = (spectrum / spectrum.sum())[::step].tolist()
        series.append(Series(label, places, [max(share, 1e-9) for share in shares], style))
    if layer.kl:
        stretches = layer.stretches / layer.stretches.mean()
        values = [max(value, 1e-9) for value in stretches[::step].tolist()]
        series.append(Series("stretch: K⁻¹G over its mean", places, values, 2))
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

"""A run in a few sentences."""

from __future__ import annotations

from convdkm.insight.look import Insight
from convdkm.report.findings import Findings
from convdkm.report.markup import Markup, element
from convdkm.report.outcome import Outcome
from convdkm.report.scale import percent, short

WELL_CALIBRATED = 0.02


def brief(found: Findings) -> Markup | None:
    """What stands out, as a list; None where nothing is known."""
    said: list[str] = []
    if found.outcome is not None:
        said += _of_predictions(found.outcome)
    if found.insight is not None:
        said += _of_layers(found.insight)
    return element("ul", [element("li", each) for each in said], class_="brief") if said else None


def _of_predictions(outcome: Outcome) -> list[str]:
    said, names = [], outcome.class_names
    confusions = outcome.frequent_confusions(1)
    if confusions:
        true, taken, times = confusions[0]
        often = "once" if times == 1 else f"{times} times"
        said.append(
            f"{int(outcome.wrong.sum()):,} of {len(outcome):,} test images are wrong; most often"
            f" {names[true]} is taken for {names[taken]}, {often}."
        )
    else:
        said.append(f"All {len(outcome):,} test images are right.")
    error = outcome.metrics["ece"]
    if error < WELL_CALIBRATED:
        said.append(f"It is well calibrated: its confidence is off by {percent(error)}.")
    else:
        way = "too sure of itself" if outcome.overconfidence > 0 else "too modest"
        said.append(f"It is {way}: its confidence is off by {percent(round(error, 3))}.")
    return said


def _of_layers(insight: Insight) -> list[str]:
    learned = [
        (name, layer)
        for name, layer in zip(insight.labels, insight.layers, strict=True)
        if layer.kl
    ]
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

"""What the figures of an evaluation are called where a person reads them."""

from collections.abc import Callable, Mapping

METRIC_NAMES = {
    "accuracy": "accuracy",
    "log_likelihood": "log-likelihood",
    "brier": "Brier score",
    "ece": "calibration error",
    "entropy": "mean entropy",
    "mutual_information": "mean mutual information",
}
PARTS = ("test", "validation", "train")
"""The parts of the data that there may be figures of, by their prefixes."""


def metric_rows(
    metrics: Mapping[str, float], form: Callable[[str, float | None], str]
) -> tuple[list[str], list[list[str]]]:
    """The parts that there are figures of, and a row for each kind of figure.

    ``form`` writes a figure, given its name and value.
    """
    parts = [part for part in PARTS if f"{part}_accuracy" in metrics]
    rows = [
        [title, *(form(name, metrics.get(f"{part}_{name}")) for part in parts)]
        for name, title in METRIC_NAMES.items()
        if any(metrics.get(f"{part}_{name}") is not None for part in parts)
    ]
    return parts, rows

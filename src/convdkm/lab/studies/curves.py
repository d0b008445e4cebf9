"""Curves of runs, several of which may be seeds of one setting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import Any

from convdkm.errors import InvalidInputError

Curve = list[dict[str, float]]
"""The epochs of a run, as in ``epochs.csv``."""
LOOKS = (("black", "-"), ("0.3", "--"), ("0.0", ":"), ("0.3", "-."), ("0.0", (0, (5, 1, 1, 1))))
"""Colours and lines, one after another."""
FIGURES = {
    "test_accuracy": ("Test accuracy (%)", 100.0),
    "test_log_likelihood": ("Test log-likelihood", 1.0),
}
"""Labels of the vertical axes, and the factors of their figures."""


def labelled(texts: Sequence[str]) -> dict[str, list[Path]]:
    """The folders of ``LABEL=RUN``, by their labels."""
    found: dict[str, list[Path]] = {}
    for text in texts:
        label, _, folder = text.rpartition("=")
        if not label:
            raise InvalidInputError(f"{text!r} is not LABEL=RUN, such as fast=runs/fast-0")
        found.setdefault(label, []).append(Path(folder))
    return found


def draw(panel: Any, seeds: Sequence[Curve], along: str, name: str, **look: Any) -> None:
    """The mean of some seeds and their range, as far as all of them go; a dot if it is a point."""
    factor = FIGURES[name][1]
    rows = list(zip(*([row for row in seed if name in row] for seed in seeds), strict=False))
    places = [mean(each[along] for each in row) for row in rows]
    values = [[factor * each[name] for each in row] for row in rows]
    marker = "o" if len(places) == 1 else None
    panel.plot(places, [mean(each) for each in values], marker=marker, **look)
    low, high = [min(each) for each in values], [max(each) for each in values]
    panel.fill_between(places, low, high, color=look["color"], alpha=0.15, lw=0)


def draw_all(panel: Any, settings: dict[str, list[Curve]], along: str, name: str) -> None:
    """A curve for every setting, by its label."""
    for (label, seeds), (colour, line) in zip(settings.items(), cycle(LOOKS), strict=False):
        draw(panel, seeds, along, name, color=colour, ls=line, lw=1.2, label=label)

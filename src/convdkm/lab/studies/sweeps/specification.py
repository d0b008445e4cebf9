"""The paper's tables as data: rows, columns, what varies, what is published.

A category varies one option of a machine, its base; each is a YAML file in ``tables/``. Table 1,
``selection``, shows five categories under one another.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

from pydantic import Field

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.folder import Part
from convdkm.lab.studies.statistics import Published
from convdkm.options import nearest

SELECTION = "selection"
CATEGORIES = (
    *("nu", "normalisation", "rescaling", "top", "likelihood"),
    *("inducing", "comparison", "regularisation"),
)
"""The first five are those of Table 1; the last is from the follow-up."""
METRICS = {
    "test_accuracy": "Test accuracy (%)",
    "test_log_likelihood": "Test log-likelihood",
    "train_accuracy": "Train accuracy (%)",
    "train_log_likelihood": "Train log-likelihood",
}
"""The metrics of the paper's tables, by their names in ``metrics.json``."""


class Base(Part):
    """The machine that the rows of a category change, and where and how often it is trained.

    ``model`` defines it at any scale; ``size`` is that of the paper.
    """

    name: str
    preset: str
    model: dict[str, Any]
    size: dict[str, Any]
    datasets: tuple[str, ...]
    seeds: int


class Row(Part):
    """A setting: its name and label, and the options that it sets; none for a method of others."""

    name: str
    label: str
    latex: str | None = None
    options: dict[str, Any] | None = None
    exceptions: dict[str, dict[str, Any]] = Field(default_factory=dict)
    source: str | None = None
    group: str | None = None


class Category(Part):
    """Settings of which one is to be chosen, and what is published of them.

    ``published`` holds, for each metric and row, a figure for each data set.
    """

    name: str
    title: str
    heading: str
    latex_heading: str | None = None
    base: Base
    datasets: tuple[str, ...]
    rows: tuple[Row, ...]
    published: dict[str, dict[str, tuple[Published, ...]]]
    seconds_per_epoch: dict[str, float] = Field(default_factory=dict)
    note: str | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that the paper gives, in its order."""
        return tuple(name for name in METRICS if name in self.published)

    @property
    def runnable_rows(self) -> tuple[Row, ...]:
        """The rows that can be run."""
        return tuple(row for row in self.rows if row.options is not None)

    @property
    def varies(self) -> frozenset[str]:
        """The options that rows set."""
        return frozenset(name for row in self.runnable_rows for name in row.options or ())

    def figure(self, metric: str, row: str, dataset: str) -> Published | None:
        """The published figure, if there is one."""
        figures = self.published.get(metric, {}).get(row, ())
        return dict(zip(self.datasets, figures, strict=False)).get(dataset)


@cache
def category(name: str) -> Category:
    """The category of that name; an error with the nearest if there is none."""
    if name not in CATEGORIES:
        known = (SELECTION, *CATEGORIES)
        raise InvalidInputError(
            f"there is no table {name!r}.{nearest(name, known)} There are {', '.join(known)}."
        )
    content = _read(name)
    base = {"name": content["base"], **_read(f"base-{content['base']}")}
    return Category.model_validate(
        {"name": name, "datasets": base["datasets"], **content, "base": base}
    )


def categories_of(table: str) -> tuple[Category, ...]:
    """The categories of a table: those of Table 1, or one."""
    return tuple(map(category, CATEGORIES[:5] if table == SELECTION else (table,)))


def chosen_rows(table: str, wanted: Iterable[str] | None) -> dict[str, tuple[Row, ...]]:
    """The rows to run, by category: all that can be, or those named.

    A name stands for the rows of that name in every category, unless it says in which:
    ``nu:1``. Unknown ones are an error that suggests the nearest.
    """
    rows = {each.name: each.runnable_rows for each in categories_of(table)}
    if wanted is None:
        return rows
    known = {f"{name}:{row.name}": row.name for name, group in rows.items() for row in group}
    picked: set[str] = set()
    for text in wanted:
        found = {key for key, name in known.items() if _same(text, key) or _same(text, name)}
        if not found:
            names = list(dict.fromkeys(known.values()))
            raise InvalidInputError(
                f"table {table!r} has no row {text!r}.{nearest(text, [*names, *known])} There are"
                f" {', '.join(names)}."
            )
        picked |= found
    return {
        name: tuple(row for row in group if f"{name}:{row.name}" in picked)
        for name, group in rows.items()
    }


def _same(text: str, name: str) -> bool:
    """Whether a user means this name: spaces do not count, and numbers may be written otherwise."""
    text = text.replace(" ", "").lower().replace("∞", "inf")
    if text == name:
        return True
    try:
        return float(text) == float(name)
    except ValueError:
        return False


def _read(name: str) -> dict[str, Any]:
    import yaml

    path = resources.files("convdkm.lab.studies.sweeps") / "tables" / f"{name}.yaml"
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))

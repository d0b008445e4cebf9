"""The paper's tables as data: rows, columns, what varies, what is published.

Each is a YAML file in ``tables/``. A category varies one thing; a collection is several categories
under one another, as Table 1 of the paper. A category's ``base`` is the machine that its rows
change.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

from pydantic import Field, model_validator

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.folder import Part
from convdkm.lab.studies.statistics import Published
from convdkm.options import nearest

CATEGORIES = ("nu", "normalisation", "rescaling", "top", "likelihood", "inducing", "comparison")
COLLECTIONS = ("selection",)
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

    preset: str
    model: dict[str, Any]
    size: dict[str, Any]
    datasets: tuple[str, ...]
    seeds: int


class Row(Part):
    """A setting: what it is called, and the options that it sets; none for a method of others."""

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
    base_name: str = Field(alias="base")
    base: Base = Field(alias="base_content")
    datasets: tuple[str, ...]
    rows: tuple[Row, ...]
    published: dict[str, dict[str, tuple[Published, ...]]]
    seconds_per_epoch: dict[str, float] = Field(default_factory=dict)
    note: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Category:
        names = {row.name for row in self.rows}
        for metric, rows in self.published.items():
            if metric not in METRICS:
                raise ValueError(f"unknown metric {metric!r}.{nearest(metric, METRICS)}")
            for name, figures in rows.items():
                if name not in names:
                    raise ValueError(f"{metric} of {name!r}, which is no row")
                if len(figures) != len(self.datasets):
                    raise ValueError(f"{metric} of {name!r} needs {len(self.datasets)} figures")
        return self

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
        """What is published, if anything is."""
        if dataset not in self.datasets:
            return None
        figures = self.published.get(metric, {}).get(row)
        return None if figures is None else figures[self.datasets.index(dataset)]


class Collection(Part):
    """Categories under one another, in one metric."""

    name: str
    title: str
    categories: tuple[str, ...]
    metric: str


@cache
def category(name: str) -> Category:
    """The category of that name; an error with the nearest if there is none."""
    if name not in CATEGORIES:
        known = (*COLLECTIONS, *CATEGORIES)
        raise InvalidInputError(
            f"there is no table {name!r}.{nearest(name, known)} There are {', '.join(known)}."
        )
    content = _read(name)
    base = Base.model_validate(_read(f"base-{content['base']}"))
    content.setdefault("datasets", base.datasets)
    return Category.model_validate({"name": name, "base_content": base, **content})


@cache
def collection(name: str) -> Collection:
    """The collection of that name, one of :data:`COLLECTIONS`."""
    return Collection.model_validate({"name": name, **_read(name)})


def categories_of(table: str) -> tuple[Category, ...]:
    """The categories of a table: of a collection its own, of a category itself."""
    if table in COLLECTIONS:
        return tuple(category(name) for name in collection(table).categories)
    return (category(table),)


def chosen_rows(table: str, wanted: Iterable[str] | None) -> dict[str, tuple[Row, ...]]:
    """The rows to run, by category: all that can be, or those named.

    A name stands for the rows of that name in every category, unless it says in which:
    ``nu:1``. Unknown ones are an error that suggests the nearest.
    """
    categories = categories_of(table)
    rows = {each.name: each.runnable_rows for each in categories}
    if wanted is None:
        return rows
    known = {f"{name}:{row.name}": (name, row) for name, group in rows.items() for row in group}
    picked: list[str] = []
    for text in wanted:
        found = [key for key in known if _same(text, key) or _same(text, key.partition(":")[2])]
        if not found:
            short = list(dict.fromkeys(row.name for group in rows.values() for row in group))
            raise InvalidInputError(
                f"table {table!r} has no row {text!r}.{nearest(text, [*short, *known])} There are"
                f" {', '.join(short)}."
            )
        picked += found
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

    folder = resources.files("convdkm.lab.studies.sweeps").joinpath("tables")
    content = yaml.safe_load(folder.joinpath(f"{name}.yaml").read_text(encoding="utf-8"))
    return dict(content)

"""Named settings of whole runs; each is a YAML file in this folder.

A preset holds a description, options, and options for particular data sets that override them. One
that is built on another (``base``) holds what it changes of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Any

from convdkm.config import RunConfig
from convdkm.errors import InvalidInputError
from convdkm.options import nearest

ORDER = ("paper", "paper-benchmark", "published", "skr", "accurate", "fast", "quick")


@dataclass(frozen=True)
class Preset:
    """Settings with a name.

    Attributes:
        name: how it is called.
        description: what it is.
        options: for every data set.
        datasets: for particular ones.
        base: the preset whose settings, also those for a data set, come before its own.
    """

    name: str
    description: str
    options: dict[str, Any]
    datasets: dict[str, dict[str, Any]]
    base: str | None = None

    def config(self, dataset: str = "digits", **options: Any) -> RunConfig:
        """The whole configuration for a data set, with some options changed."""
        source = f"preset {self.name!r}"
        config = preset(self.base).config(dataset) if self.base else RunConfig()
        config = config.updated(self.options, source).updated({"dataset": dataset})
        config = config.updated(self.datasets.get(dataset, {}), source)
        return config.updated(options)


def names() -> tuple[str, ...]:
    """The names of the presets."""
    return ORDER


def default_for(dataset: str) -> str:
    """The preset where none is asked for: ``quick`` for the digits, else ``paper``."""
    return "quick" if dataset == "digits" else "paper"


def preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in ORDER:
        raise InvalidInputError(
            f"unknown preset {name!r}.{nearest(name, ORDER)} There are {', '.join(ORDER)}."
        )
    import yaml

    text = resources.files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    return Preset(
        name,
        " ".join(content["description"].split()),
        content.get("options") or {},
        content.get("datasets") or {},
        content.get("base"),
    )

"""Which runs a table needs: settings × data sets × seeds, each with its folder.

A run's folder follows from its settings, so that categories share the runs that they have in common
(the base model of Table 1 is a row of all five).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from convdkm.config import RunConfig
from convdkm.errors import InvalidInputError
from convdkm.lab.studies import folder
from convdkm.lab.studies.folder import Part, counted, in_words
from convdkm.lab.studies.sweeps.specification import Base, Category, Row, category
from convdkm.options import Integers, PositiveInt
from convdkm.presets import preset

SMALL_PRESETS = ("fast", "quick")
"""Presets whose size and recipe stand in place of the paper's."""
IMMATERIAL = (
    "checkpoint_minutes",
    "checkpointing",
    "compile",
    "data_dir",
    "device",
    "evaluate_every",
    "evaluation_batch",
    "micro_batch",
    "retries",
    "timeout_minutes",
)
"""Options that say where and how a run is made, and not what comes out."""


class Scale(folder.Scale):
    """What a sweep changes of the paper's runs to make them smaller; None where it does not.

    ``others`` are further options of a run, as text that an option of the command line would take.
    """

    preset: str | None = None
    epochs: PositiveInt | None = None
    train_size: PositiveInt | None = None
    inducing: Integers | None = None
    others: dict[str, str] = Field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """As options of a run."""
        return {**self.model_dump(exclude={"preset", "others"}, exclude_none=True), **self.others}

    def flat(self) -> dict[str, Any]:
        """Its values by name, further options among them."""
        return {**self.model_dump(exclude={"others"}), **self.others}


class Selection(Part):
    """What of a table is swept: data sets, rows of each category, and the number of seeds."""

    datasets: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]
    seeds: int = Field(gt=0)

    def merged(self, other: Selection) -> Selection:
        """What either of the two has, rows in the order of the paper."""
        rows = {}
        for name in dict.fromkeys([*self.rows, *other.rows]):
            either = {*self.rows.get(name, ()), *other.rows.get(name, ())}
            rows[name] = tuple(
                row.name for row in category(name).runnable_rows if row.name in either
            )
        datasets = tuple(dict.fromkeys([*self.datasets, *other.datasets]))
        return Selection(datasets=datasets, rows=rows, seeds=max(self.seeds, other.seeds))


def merged_by_name(selections: Iterable[tuple[str, Selection]]) -> dict[str, Selection]:
    """Selections by name; those of one name are merged."""
    found: dict[str, Selection] = {}
    for name, chosen in selections:
        found[name] = found[name].merged(chosen) if name in found else chosen
    return found


@dataclass(frozen=True)
class PlannedRun:
    """One run: its settings, and its folder within that of the sweep."""

    title: str
    dataset: str
    place: str
    config: RunConfig

    @property
    def cost(self) -> tuple[Any, ...]:
        """Runs alike in this take about the same time."""
        model, data = self.config.model, self.config.data
        return (self.dataset, model.inducing, model.blocks, data.train_size)


def planned_cell(
    table: Category, row: Row, dataset: str, seeds: int, scale: Scale
) -> list[PlannedRun]:
    """The runs of one row on one data set, seed by seed."""
    config = settings(table, row, dataset, scale)
    place = f"{_name(dataset)}/{table.base_name}/{slug(table.base, row)}"
    title = f"{_name(dataset)}, {table.title.partition(' (')[0].lower()} {row.label}"
    runs = []
    for seed in range(seeds):
        own = config.updated({"seed": seed})
        runs.append(PlannedRun(f"{title}, seed {seed}", dataset, f"{place}/seed-{seed}", own))
    return runs


def plan(selections: Iterable[Selection], scale: Scale) -> list[PlannedRun]:
    """Every run that is needed, once."""
    runs: dict[str, PlannedRun] = {}
    for chosen in selections:
        for name, rows in chosen.rows.items():
            table = category(name)
            for row in table.runnable_rows:
                if row.name in rows:
                    for dataset in chosen.datasets:
                        for run in planned_cell(table, row, dataset, chosen.seeds, scale):
                            runs.setdefault(run.place, run)
    return list(runs.values())


def settings(table: Category, row: Row, dataset: str, scale: Scale) -> RunConfig:
    """All options of a row: preset, base model, the paper's size, the row's own, the scale's."""
    if row.options is None:
        raise InvalidInputError(f"{row.label} ({row.source}) is not a setting that can be run")
    for name in scale.options():
        if name in table.varies:
            flag = f"--{name}" if name in Scale.model_fields else f"--set {name}"
            raise InvalidInputError(
                f"{name} is what table {table.name!r} varies; choose rows with --rows, such as"
                f" --rows {table.runnable_rows[0].name}, in place of {flag}"
            )
    chosen = scale.preset or table.base.preset
    config = preset(chosen).config(dataset).updated(table.base.model)
    if chosen not in SMALL_PRESETS:
        config = config.updated({**table.base.size, **row.exceptions.get(dataset, {})})
    config = config.updated({**row.options, **scale.options()})
    # The runs of a table are whitened alike, as the paper's are, however few images one has.
    return config.updated({"whitening": config.training.whitening.replace("auto", "zca")})


def slug(base: Base, row: Row) -> str:
    """A name for the folder: what the row changes of the base model."""
    changes = [
        f"{name.replace('_', '-')}-{in_words(value).replace('/', '-')}"
        for name, value in (row.options or {}).items()
        if base.model.get(name, ...) != value
    ]
    return "_".join(changes) or "base"


def difference(found: RunConfig, planned: RunConfig) -> str:
    """Where a run differs from what was planned, in words; empty if nowhere that matters."""
    have, want = (
        {name: value for name, value in config.flat().items() if name not in IMMATERIAL}
        for config in (found, planned)
    )
    return folder.difference(have, want)


def scale_notes(tables: Sequence[Category], scale: Scale, chosen: Selection) -> list[str]:
    """How the sweep differs from the paper's, one sentence each; empty if it does not."""
    notes = []
    base = tables[0].base
    if scale.preset not in (None, base.preset):
        own = ", with a size and recipe of its own" if scale.preset in SMALL_PRESETS else ""
        notes.append(f"preset {scale.preset} in place of {base.preset}{own}")
    if scale.epochs is not None and scale.epochs != base.size["epochs"]:
        notes.append(f"{counted(scale.epochs, 'epoch')} in place of {base.size['epochs']}")
    if scale.train_size is not None:
        notes.append(f"{scale.train_size:,} training images in place of all")
    if scale.inducing is not None and list(scale.inducing) != base.size["inducing"]:
        ours, theirs = in_words(scale.inducing), in_words(base.size["inducing"])
        notes.append(f"inducing points {ours} in place of {theirs}")
    notes += [f"{name} {value}" for name, value in scale.others.items()]
    if chosen.seeds != base.seeds:
        notes.append(f"{counted(chosen.seeds, 'seed')} in place of {base.seeds}")
    other = [_name(each) for each in chosen.datasets if each not in tables[0].datasets]
    if other:
        notes.append(f"data that the paper's table does not have: {', '.join(other)}")
    return notes


def _name(dataset: str) -> str:
    """A data set's own name, or that of its file or folder."""
    return Path(dataset).stem or dataset

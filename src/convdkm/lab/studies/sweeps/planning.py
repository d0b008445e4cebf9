"""The plan of a sweep: settings × data sets × seeds, and the folder that its runs lie in.

A run's folder follows from its settings, so that categories share the runs that they have in common
(the base model of Table 1 is a row of all five). Each has its log and, if it failed, its error
beside it. ``sweep.json`` holds the plan and the scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import Field

from convdkm.config import RunConfig
from convdkm.errors import InvalidInputError
from convdkm.lab.studies import folder
from convdkm.lab.studies.folder import Part, Status, StudyFolder, counted, in_words
from convdkm.lab.studies.sweeps.specification import METRICS, Base, Category, Row, category
from convdkm.options import Integers, PositiveInt
from convdkm.presets import preset
from convdkm.storage.files import read_mapping, write_json

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
    """Changes of the paper's runs that make a sweep smaller; None where it has none.

    ``others`` are further options of a run, as text that an option of the command line would take.
    """

    preset: str | None = None
    epochs: PositiveInt | None = None
    train_size: PositiveInt | None = None
    inducing: Integers | None = None
    others: dict[str, str] = Field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """The options of a run that it sets."""
        return {**self.model_dump(exclude={"preset", "others"}, exclude_none=True), **self.others}

    def flat(self) -> dict[str, Any]:
        return {**self.model_dump(exclude={"others"}), **self.others}


class Selection(Part):
    """A part of a table: data sets, rows of each category, and the count of seeds."""

    datasets: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]
    seeds: int = Field(gt=0)

    def merged(self, other: Selection) -> Selection:
        """The rows, data sets and seeds of either, rows in the order of the paper."""
        rows = {}
        for name in dict.fromkeys([*self.rows, *other.rows]):
            either = {*self.rows.get(name, ()), *other.rows.get(name, ())}
            rows[name] = tuple(r.name for r in category(name).runnable_rows if r.name in either)
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


class Record(folder.Record):
    """The scale of a sweep, and what it has of each table."""

    scale: Scale
    tables: dict[str, Selection]

    def planned(self) -> list[PlannedRun]:
        return plan(self.tables.values(), self.scale)

    def merged(self, more: Record) -> Record:
        tables = merged_by_name([*self.tables.items(), *more.tables.items()])
        return Record(scale=self.scale, tables=tables)


class SweepFolder(StudyFolder[PlannedRun, Record]):
    """The folder of a sweep."""

    kind = "sweep"
    command = "convdkm sweep TABLE"
    one_scale = "runs of different scales do not make one table"
    record = Record

    def of(self, run: PlannedRun) -> Path:
        """The folder of a run."""
        return self.path / run.place

    def status(self, planned: PlannedRun) -> Status:
        run = self.of(planned)
        if (run / "config.yaml").is_file():
            changed = difference(RunConfig.from_file(run / "config.yaml"), planned.config)
            if changed:
                return Status(state="other", error=changed)
        metrics = read_metrics(run)
        if metrics is not None:
            return Status(state="finished", metrics=metrics)
        failure = read_mapping(self.file(planned, "failed.json"))
        if failure is not None:
            return Status(state="failed", error=str(failure.get("error", "")))
        return Status(state="begun" if (run / "checkpoints").is_dir() else "missing")

    def note_failure(self, run: PlannedRun, error: str, attempts: int) -> None:
        """Keep the error of a run."""
        time = datetime.now(timezone.utc).isoformat(timespec="seconds")
        content = {"error": error, "attempts": attempts, "time": time}
        write_json(self.file(run, "failed.json"), content)

    def clear_failure(self, run: PlannedRun) -> None:
        """Forget the error of a run that is begun again."""
        self.file(run, "failed.json").unlink(missing_ok=True)


def read_metrics(folder: Path) -> dict[str, float] | None:
    """The final figures of a run; None if it is not finished."""
    metrics = read_mapping(folder / "metrics.json")
    return metrics if metrics is not None and METRICS.keys() <= metrics.keys() else None


def planned_cell(
    table: Category, row: Row, dataset: str, seeds: int, scale: Scale
) -> list[PlannedRun]:
    """The runs of one row on one data set, seed by seed."""
    config = settings(table, row, dataset, scale)
    place = f"{_name(dataset)}/{table.base.name}/{slug(table.base, row)}"
    title = f"{_name(dataset)}, {table.title.partition(' (')[0].lower()} {row.label}"
    return [
        PlannedRun(
            f"{title}, seed {seed}", dataset, f"{place}/seed-{seed}", config.updated({"seed": seed})
        )
        for seed in range(seeds)
    ]


def planned_cells(
    name: str, chosen: Selection, scale: Scale
) -> dict[tuple[str, str, str], list[PlannedRun]]:
    """The runs of a category by category, row and data set."""
    table = category(name)
    return {
        (name, row.name, dataset): planned_cell(table, row, dataset, chosen.seeds, scale)
        for row in table.runnable_rows
        if row.name in chosen.rows[name]
        for dataset in chosen.datasets
    }


def plan(selections: Iterable[Selection], scale: Scale) -> list[PlannedRun]:
    """Every run that is needed, once."""
    runs: dict[str, PlannedRun] = {}
    for chosen in selections:
        for name in chosen.rows:
            for cell in planned_cells(name, chosen, scale).values():
                for run in cell:
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
        small = ", with a size and recipe of its own" if scale.preset in SMALL_PRESETS else ""
        notes.append(f"preset {scale.preset} in place of {base.preset}{small}")
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

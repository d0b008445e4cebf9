"""What a user asks of a sweep, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convdkm.config import RunConfig
from convdkm.data.registry import MissingDataError, checked_dataset, is_known, locate
from convdkm.errors import InvalidInputError
from convdkm.lab.studies.sweeps.planning import IMMATERIAL, Scale, Selection
from convdkm.lab.studies.sweeps.specification import Category, categories_of, chosen_rows
from convdkm.presets import preset as preset_of

OWN_FLAG = {
    name: f"--{name.replace('_', '-')}"
    for name in ("dataset", "epochs", "train_size", "inducing", "data_dir", "device")
} | {"seed": "--seeds"}
"""Options of a run that ``--set`` leaves to options of their own."""


@dataclass(frozen=True)
class Request:
    """What a user asks for, as given."""

    table: str
    datasets: list[str] | None
    rows: list[str] | None
    seeds: int | None
    scale: Mapping[str, str | None]
    preset: str | None
    others: Mapping[str, str]
    where: Mapping[str, str | None]

    def categories(self) -> tuple[Category, ...]:
        """The categories of the table."""
        return categories_of(self.table)

    def selection(self) -> Selection:
        """What of the table is to be run."""
        tables = self.categories()
        rows = chosen_rows(self.table, self.rows)
        datasets = [checked_dataset(name) for name in self.datasets or tables[0].datasets]
        seeds = tables[0].base.seeds if self.seeds is None else self.seeds
        if seeds < 1:
            raise InvalidInputError(f"--seeds must be at least 1, got {seeds}")
        return Selection(
            datasets=tuple(dict.fromkeys(datasets)),
            rows={name: tuple(row.name for row in group) for name, group in rows.items() if group},
            seeds=seeds,
        )

    def checked_scale(self) -> Scale:
        """What is changed of the paper's runs."""
        if self.preset is not None:
            preset_of(self.preset)
        given = {name: value for name, value in self.scale.items() if value is not None}
        checked = RunConfig.of(given, "the options").flat()
        others = {name: value for name, value in self._others().items() if name not in IMMATERIAL}
        return Scale(preset=self.preset, others=others, **{name: checked[name] for name in given})

    def place(self) -> dict[str, Any]:
        """Where runs are made: options that do not change their figures."""
        given = {name: value for name, value in self._others().items() if name in IMMATERIAL}
        given |= {name: value for name, value in self.where.items() if value is not None}
        if "data_dir" in given:
            given["data_dir"] = str(Path(given["data_dir"]).expanduser().resolve())
        RunConfig.of(given, "the options")
        return given

    def _others(self) -> dict[str, str]:
        """The other options: checked, and each written in one way."""
        for name, value in self.others.items():
            if own := OWN_FLAG.get(name):
                raise InvalidInputError(
                    f"--set {name}={value}: that has an option of its own here, {own}"
                )
        checked = RunConfig.of(self.others, "--set").flat()
        return {name: _written(checked[name]) for name in self.others}


def _written(value: Any) -> str:
    """The value of an option as text that the option takes."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def require_data(datasets: Sequence[str], data_dir: str | None) -> None:
    """Raise before anything is begun, if a data set is not on this machine."""
    for name in datasets:
        try:
            if is_known(name):
                locate(name, data_dir)
        except MissingDataError as error:
            others = [each for each in datasets if each != name]
            more = f". Or leave it out: --dataset {','.join(others)}" if others else ""
            raise MissingDataError(f"{error}{more}") from None

"""What a user asks of a sweep, checked and made into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convdkm.config import RunConfig
from convdkm.data.registry import MissingDataError, checked_dataset, is_known, locate
from convdkm.errors import InvalidInputError
from convdkm.lab.studies.sweeps.folder import Record, SweepFolder
from convdkm.lab.studies.sweeps.planning import IMMATERIAL, Scale, Selection
from convdkm.lab.studies.sweeps.specification import categories_of, chosen_rows
from convdkm.lab.studies.sweeps.sweep import Sweep

DEDICATED_FLAGS = {
    name: f"--{name.replace('_', '-')}"
    for name in ("dataset", "epochs", "train_size", "inducing", "data_dir", "device")
} | {"seed": "--seeds"}
"""Options of a run that ``--set`` leaves to options of their own."""


def asked_for(
    table: str,
    folder: SweepFolder,
    *,
    datasets: Sequence[str] | None,
    rows: Sequence[str] | None,
    seeds: int | None,
    preset: str | None,
    others: Mapping[str, str],
    where: Mapping[str, str | None],
    timed: bool,
    **scale: str | None,
) -> Sweep:
    """The sweep that the options of ``convdkm sweep`` ask for; nothing is written."""
    tables = categories_of(table)
    picked = chosen_rows(table, rows)
    names = [checked_dataset(name) for name in datasets or tables[0].datasets]
    seeds = tables[0].base.seeds if seeds is None else seeds
    if seeds < 1:
        raise InvalidInputError(f"--seeds must be at least 1, got {seeds}")
    selection = Selection(
        datasets=tuple(dict.fromkeys(names)),
        rows={name: tuple(row.name for row in group) for name, group in picked.items() if group},
        seeds=seeds,
    )
    size = {name: value for name, value in scale.items() if value is not None}
    checked = RunConfig.of(size, "the options").flat()
    set_by_name = _others(others)
    further = {name: value for name, value in set_by_name.items() if name not in IMMATERIAL}
    changed = Scale(preset=preset, others=further, **{name: checked[name] for name in size})
    place: dict[str, Any] = {
        **{name: value for name, value in set_by_name.items() if name in IMMATERIAL},
        **{name: value for name, value in where.items() if value is not None},
    }
    if "data_dir" in place:
        place["data_dir"] = str(Path(place["data_dir"]).expanduser().resolve())
    RunConfig.of(place, "the options")
    record = Record(scale=changed, tables={table: selection})
    return Sweep(folder, record, place, timed)


def _others(given: Mapping[str, str]) -> dict[str, str]:
    """Options by ``--set``: checked, and each written in one way, which the option takes."""
    for name, value in given.items():
        if own := DEDICATED_FLAGS.get(name):
            raise InvalidInputError(
                f"--set {name}={value}: that has an option of its own here, {own}"
            )
    checked = RunConfig.of(given, "--set").flat()
    values = {name: checked[name] for name in given}
    return {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
    }


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

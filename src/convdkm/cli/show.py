"""``convdkm show`` and ``convdkm presets``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from convdkm.cli.output import console, metrics_table, plain_table

if TYPE_CHECKING:
    from convdkm.summary import LayerSummary

COLUMNS = ("layer", "kind", "P_i", "space", "parameters", "ν", "KL")


def show_run(folder: Path, checkpoint: str) -> None:
    """Print the machine of a run, layer by layer, and its figures."""
    from convdkm.cli.evaluate import open_run
    from convdkm.summary import summarise

    screen = console()
    run = open_run(folder, checkpoint, "cpu")
    config = run.config
    size = "×".join(map(str, run.image_shape))
    screen.print(
        f"{config.data.dataset}: {len(run.class_names)} classes, images {size}, whitening"
        f" {config.data.whitening}; after step {run.step}",
        soft_wrap=True,
    )
    screen.print()
    screen.print(machine_table(summarise(run.model, run.image_shape)))
    if run.metrics:
        screen.print()
        screen.print(metrics_table(run.metrics))


def machine_table(rows: Iterable[LayerSummary]) -> Table:
    """The layers, those of a block under its name."""
    rows = list(rows)
    table = plain_table(*COLUMNS, right=COLUMNS[2:])
    for block, members in groupby(rows, key=lambda row: row.block):
        if block:
            table.add_row(block, style="bold")
        for row in members:
            table.add_row(
                f"  {row.part}" if block else row.part,
                row.kind,
                str(row.inducing) if row.inducing else "",
                "×".join(map(str, row.space)),
                f"{row.parameters:,}" if row.parameters else "",
                "" if row.nu is None else f"{row.nu:g}",
                "" if row.kl is None else f"{row.kl:.2f}",
            )
    table.add_section()
    parameters = sum(row.parameters for row in rows)
    divergence = sum(row.kl for row in rows if row.kl is not None)
    table.add_row("all", "", "", "", f"{parameters:,}", "", f"{divergence:.2f}")
    return table


def show_presets(name: str | None, dataset: str) -> None:
    """Print what presets there are, or all values of one."""
    from convdkm.cli.settings import checked_dataset
    from convdkm.presets import names, preset

    if name is not None:
        chosen = preset(name)
        dataset = checked_dataset(dataset)
        title = f"Preset {name} for {dataset}. {chosen.description}"
        print(textwrap.fill(title, 80, initial_indent="# ", subsequent_indent="# "))
        print(chosen.config(dataset).to_yaml(), end="")
        return
    table = plain_table("preset", "what it is")
    for each in names():
        table.add_row(each, textwrap.fill(preset(each).description, 60))
    console().print(table)

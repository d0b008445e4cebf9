"""``convdkm show`` and ``convdkm presets``."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from convdkm.cli.output import metrics_table, plain_table


def show_run(folder: Path, checkpoint: str) -> None:
    """Print the machine of a run, layer by layer, and its figures."""
    from convdkm.cli.evaluate import open_run
    from convdkm.summary import summarise

    console = Console(highlight=False)
    run = open_run(folder, checkpoint, "cpu", console)
    config = run.config
    size = "×".join(map(str, run.image_shape))
    console.print(
        f"{config.data.dataset}: {len(run.class_names)} classes, images {size},"
        f" {config.data.whitening} whitening; step {run.step}"
    )
    table = plain_table("layer", "kind", "P_i", "space", "parameters", "ν", "KL", right=_RIGHT)
    rows = summarise(run.model, run.image_shape)
    for row in rows:
        table.add_row(
            row.name.removeprefix("body."),
            row.kind,
            str(row.inducing) if row.inducing else "",
            "×".join(map(str, row.space)),
            f"{row.parameters:,}" if row.parameters else "",
            "" if row.nu is None else f"{row.nu:g}",
            "" if row.kl is None else f"{row.kl:.2f}",
        )
    table.add_section()
    total_kl = sum(row.kl for row in rows if row.kl is not None)
    table.add_row("all", "", "", "", f"{sum(r.parameters for r in rows):,}", "", f"{total_kl:.2f}")
    console.print(table)
    if run.metrics:
        console.print(metrics_table(run.metrics))


_RIGHT = ("P_i", "space", "parameters", "ν", "KL")


def show_presets(name: str | None, dataset: str) -> None:
    """Print what presets there are, or all values of one."""
    from convdkm.presets import names, preset

    if name is not None:
        chosen = preset(name)
        print(f"# preset {name} for {dataset}: {chosen.description}")
        print(chosen.config(dataset).to_yaml(), end="")
        return
    table = plain_table("preset", "what it is")
    for each in names():
        table.add_row(each, preset(each).description)
    Console(highlight=False).print(table)

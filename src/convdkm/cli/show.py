"""``convdkm show``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from convdkm.cli.arguments import CheckpointName, DataDir, MovedData, argument, option, switch
from convdkm.cli.output import UNBOUNDED, console, metrics_table, plain_table, say, warn
from convdkm.data.registry import checked_dataset, is_known
from convdkm.errors import ConvDKMError, InvalidInputError

if TYPE_CHECKING:
    from rich.table import Table

    from convdkm.insight import Reading
    from convdkm.insight.summary import LayerSummary
    from convdkm.training.run import Run

COLUMNS = ("layer", "kind", "P_i", "space", "parameters", "ν", "KL")
LEAVE_OUT = ((), ("kind",), ("kind", "parameters"))
"""Columns that are left out where a terminal is too narrow for all: as few as will do."""
_START = "For a data set"


def show(
    subject: Annotated[
        str,
        argument("RUN|DATASET", "folder of a run; or a data set, for a machine before training"),
    ],
    checkpoint: CheckpointName = "last",
    data: MovedData = None,
    *,
    no_data: Annotated[
        bool, switch("--no-data", "leave out explained and spread, which need images")
    ] = False,
    data_dir: DataDir = None,
    preset: Annotated[
        str | None,
        option(
            "NAME", "settings to start from (default: quick for digits, else paper)", group=_START
        ),
    ] = None,
    config: Annotated[
        Path | None, option("FILE", "YAML file of options, which override the preset", group=_START)
    ] = None,
    others: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE",
            "any option of convdkm train, such as inducing=16,32,64; may be repeated",
            "--set",
            group=_START,
        ),
    ] = None,
) -> None:
    """Show a machine layer by layer: that of a run, or one before training.

    P_i is the number of inducing points, space the size of the feature map, ν the weight of the KL
    divergence, which is in nats. Two columns are measured on some of the training images: explained
    is the share of their variance that the inducing points explain, and spread is how much the
    correlations with the inducing points differ from image to image. Gradient is the norm of the
    objective's gradient divided by that of the parameters.

    For a run, the gradients are those recorded in training. For a data set, the machine is the one
    that training starts from, and the gradients are those of the first step.
    """
    from convdkm.cli.inputs import given_options

    is_run = (Path(subject) / "config.yaml").is_file()
    settings = {"--preset": preset, "--config": config, "--set": others}
    given = [name for name, value in settings.items() if value]
    if not given and (is_run or not is_known(subject)):
        moved = {"dataset": data and checked_dataset(data), "data_dir": data_dir}
        places = {name: value for name, value in moved.items() if value is not None}
        _show_run(Path(subject), checkpoint, None if no_data else places)
        return
    if is_run:
        raise InvalidInputError(
            f"{subject} is a run, which has settings of its own: {given[0]} goes with a data set"
        )
    if checkpoint != "last" or no_data or data is not None:
        raise InvalidInputError(
            "--checkpoint, --data and --no-data go with a run; a machine at its start is made from"
            " the data set that is named"
        )
    options = given_options(others or [])
    if data_dir is not None:
        options["data_dir"] = data_dir
    _show_start(subject, preset, config, options)


def _show_run(folder: Path, checkpoint: str, moved: Mapping[str, str] | None) -> None:
    """Print the machine of a run, layer by layer, and its figures.

    ``moved`` holds the options that say where its images are now; None does without images.
    """
    from convdkm.cli.inputs import open_run
    from convdkm.report.findings import of_settings

    run, images = open_run(folder, checkpoint, "cpu"), None
    notes: list[str] = []
    if moved is not None:
        try:
            images = of_settings(run, warn, run.config.updated(moved)).train_images
        except (ConvDKMError, OSError) as error:
            reason = " ".join(str(error).split())
            notes.append(f"Without explained and spread, which need the images: {reason}.")
    gradients, note = ({}, "") if run.folder is None else _noted_gradients(folder / "layers.csv")
    notes += [note] if note else []
    _show(run, f"after step {run.step}", run.readings(images), gradients, notes)


def _noted_gradients(path: Path) -> tuple[dict[str, float], str]:
    """The last gradients that training has noted, and what they are; older runs have none."""
    from convdkm.training.sinks import read_layers

    try:
        noted = read_layers(path)
    except (ConvDKMError, ValueError, KeyError) as error:
        return {}, f"Without gradients, as {path} is damaged: {error}."
    for epoch, layers in sorted(noted.items(), reverse=True):
        found = {name: each["gradient"] for name, each in layers.items() if "gradient" in each}
        if found:
            when = f"the last step of epoch {epoch}" if epoch else "the first step"
            return found, f"Gradients are those of {when}."
    return {}, ""


def _show_start(
    dataset: str, preset: str | None, config: Path | None, options: Mapping[str, str]
) -> None:
    """Print the machine with which training on a data set begins."""
    from convdkm.cli.inputs import resolve

    settings, preset = resolve(dataset, preset, config, options)
    import torch

    from convdkm.cli.following import WarningSink
    from convdkm.insight import gradient_ratios
    from convdkm.runtime.allocator import keep_freed_memory
    from convdkm.training.session import prepared
    from convdkm.training.world import World

    session = prepared(settings, None, World(), sinks=[WarningSink()])
    run, trainer = session.result, session.trainer
    if run.model.device.type == "cpu":
        keep_freed_memory()
    read = run.readings(session.dataset.train_images)
    with torch.random.fork_rng(devices=[]):
        trainer.gradients(*next(trainer.batches.epoch(0)))
    _show(run, f"preset {preset}, at its start", read, gradient_ratios(run.model), [])


def _show(
    run: Run,
    state: str,
    read: Mapping[str, Reading],
    gradients: Mapping[str, float],
    notes: Sequence[str],
) -> None:
    from convdkm.insight.summary import summarise

    screen, config, size = console(), run.config, "×".join(map(str, run.image_shape))
    say(
        f"{config.data.dataset}: {len(run.class_names)} classes, images {size}, whitening"
        f" {config.training.whitening}; {state}\n"
    )
    rows = summarise(run.model, run.image_shape)
    unbounded = screen.options.update(width=UNBOUNDED)
    for without in LEAVE_OUT:
        table = machine_table(rows, read, gradients, without)
        if screen.measure(table, options=unbounded).maximum <= screen.width:
            break
    screen.print(table)
    if notes:
        say("\n" + "\n".join(notes))
    if run.metrics:
        say("")
        screen.print(metrics_table(run.metrics))


def machine_table(
    rows: Sequence[LayerSummary],
    read: Mapping[str, Reading],
    gradients: Mapping[str, float],
    without: Sequence[str],
) -> Table:
    """The layers, those of a block under its name.

    ``read`` holds the instruments of Gram layers, ``gradients`` the ratios of gradients to
    parameters, both by the names of layers; ``without`` names columns to leave out.
    """
    optional = {
        "explained": {n: f"{r.explained:.1%}" for n, r in read.items() if r.explained is not None},
        "spread": {n: f"{r.spread:.2g}" for n, r in read.items() if r.spread is not None},
        "gradient": {name: f"{value:.1e}" for name, value in gradients.items()},
    }
    measured = {title: values for title, values in optional.items() if values}
    columns = [each for each in (*COLUMNS, *measured) if each not in without]
    table = plain_table(*columns, right=[each for each in columns[1:] if each != "kind"])

    def add(cells: Mapping[str, str]) -> None:
        table.add_row(*(cells.get(column, "") for column in columns))

    for block, members in groupby(rows, key=lambda row: row.block):
        if block:
            table.add_row(block, style="bold")
        for row in members:
            cells = {
                "layer": f"  {row.part}" if block else row.part,
                "kind": row.kind,
                "P_i": str(row.inducing) if row.inducing else "",
                "space": "×".join(map(str, row.space)),
                "parameters": f"{row.parameters:,}" if row.parameters else "",
                "ν": "" if row.nu is None else f"{row.nu:g}",
                "KL": "" if row.kl is None else _nats(row.kl),
            }
            add(cells | {name: values.get(row.name, "") for name, values in measured.items()})
    table.add_section()
    parameters, divergence = sum(row.parameters for row in rows), sum(row.kl or 0.0 for row in rows)
    add({"layer": "all", "parameters": f"{parameters:,}", "KL": _nats(divergence)})
    return table


def _nats(value: float) -> str:
    return f"{value:.2f}" if value < 10_000 else f"{value:.0f}"

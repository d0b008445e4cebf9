"""``convdkm sweep``: its options. What is slow to import is imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from convdkm.cli.arguments import DataDir, Device, Quiet

_SCALE, _LAUNCH = "Scale", "Launching"


def sweep(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="selection (Table 1: all of nu, normalisation, rescaling, top and likelihood), one"
            " of these five, inducing (Table 2) or comparison (Table 3)",
        ),
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="folder of the sweep (sweeps/TABLE)"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show the plan and the time it takes, and stop there")
    ] = False,
    trial: Annotated[
        bool, typer.Option("--trial/--no-trial", help="measure a short trial beforehand (on)")
    ] = True,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    device: Device = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,NAME",
            help="data sets (those of the paper's table)",
            rich_help_panel=_SCALE,
        ),
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROW,ROW",
            help="settings, such as inf,1,0.01 or batch/location or nu:1 (all)",
            rich_help_panel=_SCALE,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="seeds of every setting (4)", rich_help_panel=_SCALE),
    ] = None,
    epochs: Annotated[
        str | None,
        typer.Option(metavar="N", help="epochs of every run", rich_help_panel=_SCALE),
    ] = None,
    train_size: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="use only so many training images, balanced over the classes",
            rich_help_panel=_SCALE,
        ),
    ] = None,
    inducing: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,N",
            help="inducing points of every stage, where they are not what varies",
            rich_help_panel=_SCALE,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="settings beneath the table's: paper, published, or fast or quick, which bring a"
            " size of their own (as the table says)",
            rich_help_panel=_SCALE,
        ),
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="any other option of convdkm train, such as evaluate_every=0; may be repeated",
            rich_help_panel=_SCALE,
        ),
    ] = None,
    launcher: Annotated[
        str,
        typer.Option(metavar="NAME", help="local, ray or slurm (local)", rich_help_panel=_LAUNCH),
    ] = "local",
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="runs at a time (local: as many as cores or devices; slurm: all)",
            rich_help_panel=_LAUNCH,
        ),
    ] = None,
    cpus: Annotated[
        int | None,
        typer.Option(metavar="N", help="cores of one run", rich_help_panel=_LAUNCH),
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="GPUs of one run, or a share of one (local: 1 if there are any; else 0)",
            rich_help_panel=_LAUNCH,
        ),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="times to go on with a run whose process was lost (3)",
            rich_help_panel=_LAUNCH,
        ),
    ] = 3,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="ray: of the cluster (RAY_ADDRESS, or one started here)",
            rich_help_panel=_LAUNCH,
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="slurm: partition", rich_help_panel=_LAUNCH),
    ] = None,
    hours: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="slurm: limit of a job, after which it is queued again (24)",
            rich_help_panel=_LAUNCH,
        ),
    ] = 24.0,
) -> None:
    """Make the runs of one of the paper's tables.

    Every setting on every data set with four seeds, unless told to do less. The same command goes
    on where it stopped: finished runs are kept, others go on from their checkpoints, and failed
    ones are tried again. A failure does not stop the rest. The last line printed is the folder, for
    convdkm tables.
    """
    from convdkm.cli.sweeping import Request, run_sweep

    run_sweep(
        Request(
            table=table,
            output=output,
            datasets=_listed(dataset),
            rows=_listed(rows),
            seeds=seeds,
            scale={"epochs": epochs, "train_size": train_size, "inducing": inducing},
            preset=preset,
            others=others or (),
            where={"data_dir": data_dir, "device": device},
        ),
        launcher={
            "name": launcher,
            "jobs": jobs,
            "address": address,
            "partition": partition,
            "hours": hours,
        },
        resources={"cpus": cpus, "gpus": gpus, "retries": retries},
        dry_run=dry_run,
        trial=trial,
        quiet=quiet,
    )


def _listed(given: list[str] | None) -> list[str] | None:
    """Names given one by one or with commas between."""
    if not given:
        return None
    return [part.strip() for text in given for part in text.split(",") if part.strip()]

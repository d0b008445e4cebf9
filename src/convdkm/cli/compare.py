"""``convdkm compare``: its options. What is slow to import is imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from convdkm.cli.arguments import DataDir, Quiet, TableFormat

_SCALE = "Scale, the same for all trials of a folder"


def compare(
    dataset: Annotated[
        str | None,
        typer.Argument(
            metavar="DATASET",
            help="digits, mnist, fashion-mnist, cifar10, cifar100, a folder with a sub-folder of"
            " images for each class, or an .npz file",
        ),
    ] = None,
    *,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,NAME",
            help="methods, or a group of them: all, quick, machines, networks, kernels or processes"
            " (quick)",
        ),
    ] = None,
    train_size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N,N",
            help="training images, balanced over the classes; several sizes, or all (1000, or all"
            " where there are fewer)",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", help="times each method is fitted at each size (3)")
    ] = 3,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="of the comparison (comparisons/DATASET)"
        ),
    ] = None,
    format: TableFormat = "markdown",
    list_methods: Annotated[
        bool, typer.Option("--list", help="list the methods, and stop there")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="show the plan, what will not fit and how long kernels take; stop there",
        ),
    ] = False,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    threads: Annotated[
        int | None,
        typer.Option(metavar="N", help="of each trial (OMP_NUM_THREADS, or all cores)"),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            metavar="MINUTES",
            help="for each fit, and for each prediction of the test images by a kernel; inf for no"
            " limit (10)",
            rich_help_panel=_SCALE,
        ),
    ] = 10.0,
    test_size: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="test images, the same for all (all)", rich_help_panel=_SCALE
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="of the machine, the inducing NNGP and the CNN, and of the crops and flips of all"
            " (quick)",
            rich_help_panel=_SCALE,
        ),
    ] = "quick",
    whitening: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="auto, zca, zca-paper, standardise, scale or none (as in the preset; auto is zca,"
            " or standardise where that does not fit)",
            rich_help_panel=_SCALE,
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="resize images to this side", rich_help_panel=_SCALE),
    ] = None,
) -> None:
    """Compare methods on the same images.

    Deep kernel machines beside the kernel methods of the paper's Table 3 and a CNN: accuracy,
    log-likelihood, calibration, time, memory and numbers learned. Each method is fitted in a
    process of its own, one after another. The same command goes on where it stopped, and tries
    failed ones again; a failure does not stop the rest. The last line printed is the folder, which
    convdkm tables and convdkm report take.
    """
    from convdkm.cli.comparing import Request, run_comparison, show_methods

    if list_methods:
        show_methods()
        return
    run_comparison(
        Request(
            dataset=dataset,
            methods=_listed(methods),
            sizes=_listed(train_size),
            seeds=seeds,
            budget=budget,
            test_size=test_size,
            image_size=image_size,
            preset=preset,
            whitening=whitening,
            output=output,
            data_dir=data_dir,
            threads=threads,
        ),
        form=format,
        dry_run=dry_run,
        quiet=quiet,
    )


def _listed(given: list[str] | None) -> list[str] | None:
    """Names given one by one or with commas between."""
    if not given:
        return None
    return [part.strip() for text in given for part in text.split(",") if part.strip()]

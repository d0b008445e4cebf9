"""``convdkm compare``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from convdkm.cli.arguments import DataDir, Quiet, TableFormat, argument, listed, option, switch
from convdkm.cli.output import console, plain_table, say
from convdkm.cli.study import Address, Hours, LauncherName, Partition, carry_out, launch, telling
from convdkm.cli.tables import write_study
from convdkm.errors import InvalidInputError

_scale = partial(option, group="Scale, the same for all trials of a folder")


def compare(
    dataset: Annotated[
        str | None,
        argument(
            "DATASET",
            "digits, mnist, fashion-mnist, cifar10, cifar100, a folder with a sub-folder of images"
            " for each class, or an .npz file",
        ),
    ] = None,
    *,
    methods: Annotated[
        list[str] | None,
        option(
            "NAME,NAME",
            "methods, or a group of them: all, quick, machines, networks, kernels or processes"
            " (default: quick)",
        ),
    ] = None,
    train_size: Annotated[
        list[str] | None,
        option(
            "N,N",
            "training images, balanced over the classes; several sizes, or all (default: 1000, or"
            " all if there are fewer)",
        ),
    ] = None,
    seeds: Annotated[int, option("N", "fits of each method at each size")] = 3,
    output: Annotated[
        Path | None,
        option(
            "FOLDER", "folder of the comparison (default: comparisons/DATASET)", "--output", "-o"
        ),
    ] = None,
    format: TableFormat = "markdown",
    list_methods: Annotated[bool, switch("--list", "list the methods and stop")] = False,
    dry_run: Annotated[
        bool,
        switch("--dry-run", "show the plan, what does not fit and how long kernels take, and stop"),
    ] = False,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    budget: Annotated[
        float,
        _scale(
            "MINUTES",
            "limit of each fit, and of each prediction of the test images by a kernel; inf for"
            " no limit",
        ),
    ] = 10.0,
    test_size: Annotated[
        int | None, _scale("N", "test images, the same for all methods (default: all)")
    ] = None,
    preset: Annotated[
        str,
        _scale(
            "NAME",
            "settings of the machine, the inducing NNGP and the CNN, and of the crops and flips"
            " of all methods",
        ),
    ] = "quick",
    whitening: Annotated[
        str | None,
        _scale(
            "NAME",
            "auto, zca, zca-paper, standardise, scale or none; auto is zca, or standardise where"
            " that does not fit (default: as in the preset)",
        ),
    ] = None,
    image_size: Annotated[int | None, _scale("N", "resize images to this height and width")] = None,
    launcher: LauncherName = "local",
    jobs: Annotated[
        int | None,
        launch("N", "trials at a time (default: local: 1, for comparable times; slurm: all)"),
    ] = None,
    threads: Annotated[
        int | None,
        launch(
            "N",
            "threads of each trial (default: local: OMP_NUM_THREADS, or all cores; else 1)",
            "--threads",
            "--cpus",
        ),
    ] = None,
    retries: Annotated[int, launch("N", "times to begin again a trial whose process was lost")] = 0,
    address: Address = None,
    partition: Partition = None,
    hours: Hours = 24.0,
) -> None:
    """Compare methods on the same images.

    Deep kernel machines beside the kernel methods of the paper's Table 3 and a CNN: accuracy,
    log-likelihood, calibration, time, memory and numbers learned. Each method is fitted in a
    process of its own, one after another unless told otherwise. The same command continues where it
    stopped, and tries failed ones again; a failure does not stop the rest. The last line printed is
    the folder, which convdkm tables and convdkm report take.
    """
    if list_methods:
        _show_methods()
        return
    from convdkm.lab.studies.comparison.comparison import asked_for
    from convdkm.lab.studies.launchers import check_name
    from convdkm.lab.studies.rendering import check_format

    check_format(format)
    check_name(launcher)
    if threads is not None and threads < 1:
        raise InvalidInputError(f"--threads must be at least 1, got {threads}")
    tell = telling(quiet=quiet)
    study = asked_for(
        dataset,
        methods=listed(methods),
        sizes=listed(train_size),
        seeds=seeds,
        budget=budget,
        preset=preset,
        whitening=whitening,
        output=output,
        data_dir=data_dir,
        here=launcher == "local",
        tell=tell,
        test_size=test_size,
        image_size=image_size,
    )
    from convdkm.lab.studies.comparison.comparison import launcher_for
    from convdkm.lab.studies.comparison.page import write_methods_page

    folder = study.folder
    engine = launcher_for(
        launcher,
        folder,
        threads=threads,
        jobs=jobs,
        retries=retries,
        address=address,
        partition=partition,
        hours=hours,
    )

    def show() -> None:
        written = write_study(folder.path, output=None, form=format)
        for path in (*written, write_methods_page(folder.path)):
            say(str(path), stderr=True)

    carry_out(study, engine, tell, dry_run=dry_run, show=show)


def _show_methods() -> None:
    """Print every method: what it is, and what it needs."""
    from convdkm.lab.baselines.methods import GROUPS, METHODS, QUICK, Method

    def needs(method: Method) -> str:
        there = "installed" if method.installed else "not installed"
        return "" if method.extra is None else f"convdkm[{method.extra}], {there}"

    rows = [(each.name, each.group, each.about, needs(each)) for each in METHODS]
    console().print(plain_table("method", "group", "", "needs", rows=rows))
    say(f"\nGroups: {', '.join(GROUPS)}. quick is {', '.join(QUICK)}.")

"""``convdkm sweep``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from convdkm.cli.arguments import DataDir, Device, Quiet, argument, listed, option, switch
from convdkm.cli.study import Address, Hours, LauncherName, Partition, carry_out, launch, telling
from convdkm.storage.text import in_shell

_scale = partial(option, group="Scale")


def sweep(
    table: Annotated[
        str,
        argument(
            "TABLE",
            "selection (Table 1: all of nu, normalisation, rescaling, top and likelihood), one of"
            " these five, inducing (Table 2), comparison (Table 3), or regularisation (of the"
            " follow-up)",
        ),
    ],
    *,
    output: Annotated[
        Path | None,
        option("FOLDER", "folder of the sweep (default: sweeps/TABLE)", "--output", "-o"),
    ] = None,
    dry_run: Annotated[
        bool, switch("--dry-run", "show the plan and the time it takes, and stop")
    ] = False,
    trial: Annotated[bool, switch("--trial/--no-trial", "measure a short trial beforehand")] = True,
    quiet: Quiet = False,
    data_dir: DataDir = None,
    device: Device = None,
    dataset: Annotated[
        list[str] | None, _scale("NAME,NAME", "data sets (default: those of the paper's table)")
    ] = None,
    rows: Annotated[
        list[str] | None,
        _scale(
            "ROW,ROW",
            "rows of the table, such as inf,1,0.01 or batch/location or nu:1 (default: all)",
        ),
    ] = None,
    seeds: Annotated[int | None, _scale("N", "seeds of every setting (default: 4)")] = None,
    epochs: Annotated[str | None, _scale("N", "epochs of every run")] = None,
    train_size: Annotated[
        str | None,
        _scale("N", "use only so many training images, balanced over the classes"),
    ] = None,
    inducing: Annotated[
        str | None,
        _scale("N,N,N", "inducing points of every stage, where they are not what varies"),
    ] = None,
    preset: Annotated[
        str | None,
        _scale(
            "NAME",
            "settings beneath the table's: paper, published, or fast or quick, which bring a size"
            " of their own (default: as the table says)",
        ),
    ] = None,
    others: Annotated[
        list[str] | None,
        _scale(
            "NAME=VALUE",
            "any other option of convdkm train, such as evaluate_every=0; may be repeated",
            "--set",
        ),
    ] = None,
    launcher: LauncherName = "local",
    jobs: Annotated[
        int | None,
        launch("N", "runs at a time (default: local: as many as cores or devices; slurm: all)"),
    ] = None,
    cpus: Annotated[int | None, launch("N", "cores of one run")] = None,
    gpus: Annotated[
        float | None,
        launch(
            "X", "GPUs of one run, or a share of one (default: local: 1 if there are any; else 0)"
        ),
    ] = None,
    retries: Annotated[int, launch("N", "times to go on with a run whose process was lost")] = 3,
    address: Address = None,
    partition: Partition = None,
    hours: Hours = 24.0,
) -> None:
    """Make the runs of one of the paper's tables.

    Every setting is trained on every data set with four seeds, unless told to do less. The same
    command continues where it stopped: finished runs are kept, others continue from their
    checkpoints, and failed ones are tried again. A failure does not stop the rest. The last line
    printed is the folder, for convdkm tables.
    """
    from convdkm.cli.inputs import given_options
    from convdkm.lab.studies.folder import JOBS
    from convdkm.lab.studies.launchers import Resources, make_launcher
    from convdkm.lab.studies.sweeps.planning import SweepFolder
    from convdkm.lab.studies.sweeps.sweep import asked_for, require_data

    path = output or Path("sweeps") / table
    study = asked_for(
        table,
        SweepFolder(path),
        datasets=listed(dataset),
        rows=listed(rows),
        seeds=seeds,
        preset=preset,
        others=given_options(others or ()),
        where={"data_dir": data_dir, "device": device},
        timed=trial,
        epochs=epochs,
        train_size=train_size,
        inducing=inducing,
    )
    if launcher == "local":
        (chosen,) = study.record.tables.values()
        require_data(chosen.datasets, study.where.get("data_dir"))
    engine = make_launcher(
        launcher,
        path.with_name(f"{path.name}-trial") if dry_run else path / JOBS,
        Resources(cpus=cpus, gpus=gpus, retries=retries),
        device=study.where.get("device"),
        jobs=jobs,
        address=address,
        partition=partition,
        hours=hours,
    )
    see = f"See the results with\n  convdkm tables {in_shell(path)}"
    carry_out(study, engine, telling(quiet=quiet), dry_run=dry_run, see=see)

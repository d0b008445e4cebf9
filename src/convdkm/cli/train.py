"""``convdkm train``."""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from convdkm.cli.arguments import Quiet, argument, option, switch


def train(
    context: typer.Context,
    dataset: Annotated[
        str | None,
        argument(
            "DATASET",
            "digits, mnist, fashion-mnist, cifar10, cifar100, a folder with a sub-folder of images"
            " for each class, or an .npz file (default: digits)",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        option(
            "NAME",
            "settings to start from: paper, paper-benchmark, published, skr, accurate, fast or"
            " quick (default: quick for digits, fast with --from, else paper)",
        ),
    ] = None,
    config: Annotated[
        Path | None, option("FILE", "YAML file of options, which override the preset")
    ] = None,
    output: Annotated[
        Path | None,
        option("FOLDER", "folder of the run (default: a new one in runs/)", "--output", "-o"),
    ] = None,
    *,
    overwrite: Annotated[bool, switch("--overwrite", "replace the run in the folder")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a machine.

    Without DATASET, it is trained on the handwritten digits that come with the program. Settings
    come from a preset, then from a file, then from the options below; each overrides the one
    before. The defaults shown are those of the paper; presets change some of them. Lists are
    written with commas: 16,32,64.

    With --from, the machine and its whitening are those of another run, of a file of Run.save or of
    a pretrained machine, but for the top layer, which is new. Options that contradict that machine
    are an error.

    Ctrl-C finishes the current step, saves a checkpoint and stops; convdkm resume continues. The
    last line printed is the folder of the run.
    """
    from convdkm.cli.inputs import resolve

    settings, preset = resolve(dataset, preset, config, context.obj)
    from convdkm.cli.following import follow
    from convdkm.training.fit import fit
    from convdkm.training.world import joined_world

    with joined_world(settings.training.timeout_minutes) as world:
        dataset = settings.data.dataset
        folder = output or (_new_folder(dataset, preset) if world.leads else None)
        folder = world.from_leader(folder)
        try:
            follow(
                lambda **more: fit(settings, dataset, folder=folder, **more),
                settings,
                folder,
                overwrite=overwrite,
                quiet=quiet,
            )
        finally:
            with suppress(OSError):  # a new folder that stayed empty is removed
                if output is None and world.leads:
                    os.removedirs(folder)


def _new_folder(dataset: str, preset: str) -> Path:
    """A folder made for a run, which no other process has."""
    name = f"{Path(dataset).stem or 'images'}-{preset}-{datetime.now():%Y%m%d-%H%M%S}"
    for number in itertools.count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder

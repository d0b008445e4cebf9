"""``convdkm train`` and ``convdkm resume``."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from convdkm.cli.interrupt import Interrupt
from convdkm.cli.output import console, metrics_table, say, say_path
from convdkm.cli.settings import checked_dataset, resolve
from convdkm.config import RunConfig
from convdkm.runtime.allocator import keep_freed_memory
from convdkm.storage.files import read_mapping
from convdkm.storage.text import in_shell

STOPPING = "Stopping after this step, or batch of images. Ctrl-C again stops at once."
TOO_EARLY = "Stopped before training began."


def train_run(
    dataset: str | None,
    preset: str | None,
    config: Path | None,
    options: Mapping[str, Any],
    *,
    output: Path | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Train, with the live view, and print the figures and the folder."""
    settings, preset = resolve(dataset, preset, config, options)
    from convdkm.training.fit import fit
    from convdkm.training.world import joined_world

    _keep_memory(settings)
    with joined_world(settings.training.timeout_minutes) as world:
        dataset = settings.data.dataset
        folder = output or (_new_folder(dataset, preset) if world.leads else None)
        folder = world.from_leader(folder)
        try:
            _follow(
                lambda **more: fit(settings, dataset, folder=folder, **more),
                folder,
                overwrite=overwrite,
                quiet=quiet,
            )
        finally:
            with suppress(OSError):  # a new folder in which nothing came to be is taken back
                if output is None and world.leads:
                    os.removedirs(folder)


def resume_run(folder: Path, options: Mapping[str, Any], *, data: str | None, quiet: bool) -> None:
    """Go on with a run, with the live view; one that is finished is left as it is."""
    from convdkm.training.fit import resume
    from convdkm.training.folder import read_config

    settings = read_config(folder)[0].updated(options)
    metrics = _final_metrics(folder, settings)
    if metrics:
        console().print(
            f"This run is finished: {metrics['epochs']} epochs, {metrics['steps']} steps."
            " To go on nevertheless, ask for more with --epochs.",
            soft_wrap=True,
        )
        console().print(metrics_table(metrics))
        say_path(folder)
        return
    _keep_memory(settings)
    place = None if data is None else checked_dataset(data)
    _follow(lambda **more: resume(folder, data=place, **options, **more), folder, quiet=quiet)


def _keep_memory(settings: RunConfig) -> None:
    """On the CPU, every step takes the memory that the one before gave up."""
    from convdkm.training.world import find_device

    if find_device(settings.training.device).type == "cpu":
        keep_freed_memory()


def _final_metrics(folder: Path, settings: RunConfig) -> dict[str, Any]:
    """The figures of a run that has come to its last epoch; nothing for any other."""
    metrics = read_mapping(folder / "metrics.json") or {}
    try:
        return metrics if metrics["epochs"] >= settings.training.epochs else {}
    except (KeyError, TypeError):
        return {}


def _follow(start: Callable[..., Any], folder: Path, *, quiet: bool, **more: Any) -> None:
    """Train under the eyes of the user; the last line printed is the folder."""
    from convdkm.cli.quiet import BeginningSink, WarningSink
    from convdkm.training.view import TerminalSink

    sink = WarningSink() if quiet else TerminalSink(console())
    leads = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun started
    # The others are told by torchrun that the first has ended.
    with Interrupt(STOPPING, too_early=TOO_EARLY) if leads else Interrupt() as interrupt:
        try:
            sinks = [sink, BeginningSink(interrupt.begin)]
            run = start(sinks=sinks, stop=interrupt, **more)
        except KeyboardInterrupt:
            if leads and (folder / "checkpoints").is_dir():
                _say_how_to_go_on("Stopped at once", folder)
            sys.exit(interrupt.exit_code)
    if not run.leads:
        return
    if run.metrics:
        console().print(metrics_table(run.metrics))
        say_path(folder)
        return
    _say_how_to_go_on(f"Stopped after step {run.step}; all is saved", folder)
    sys.exit(interrupt.exit_code)


def _say_how_to_go_on(what: str, folder: Path) -> None:
    say(f"{what}. Go on with\n  convdkm resume {in_shell(folder)}")
    say_path(folder)


def _new_folder(dataset: str, preset: str) -> Path:
    """A folder made for a run, which no other process has."""
    name = f"{Path(dataset).stem or 'images'}-{preset}-{datetime.now():%Y%m%d-%H%M%S}"
    for number in itertools.count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder

"""``convdkm train`` and ``convdkm resume``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from convdkm.cli.interrupt import Interrupt
from convdkm.cli.output import metrics_table
from convdkm.config import RunConfig, read_yaml
from convdkm.data.registry import is_known, known_set
from convdkm.presets import default_for
from convdkm.presets import preset as preset_of


def resolve(
    dataset: str | None, preset: str | None, config: Path | None, options: Mapping[str, Any]
) -> tuple[RunConfig, str]:
    """The configuration, and the preset's name: preset, then file, then flags."""
    from_file = {} if config is None else read_yaml(config)
    preset = preset or from_file.pop("preset", None)
    from_file.pop("preset", None)
    section = from_file.get("data")
    in_section = section.get("dataset") if isinstance(section, dict) else None
    name = dataset or from_file.get("dataset") or in_section or "digits"
    name = known_set(name).name if is_known(name) else name
    preset = preset or default_for(name)
    settings = preset_of(preset).config(name)
    settings = settings.updated(from_file, str(config)).updated(options)
    return settings.updated({"dataset": name}), preset


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
    if settings.data.data_dir is not None:
        settings = settings.updated({"data_dir": str(Path(settings.data.data_dir).resolve())})
    from convdkm.training.fit import fit
    from convdkm.training.world import joined_world

    with joined_world() as world:
        folder = world.from_leader(output or _new_folder(settings.data.dataset, preset))
        _follow(
            lambda **more: fit(settings, settings.data.dataset, folder=folder, **more),
            folder,
            overwrite=overwrite,
            quiet=quiet,
        )


def resume_run(folder: Path, options: Mapping[str, Any], *, quiet: bool) -> None:
    """Go on with a run, with the live view."""
    from convdkm.training.fit import resume

    _follow(lambda **more: resume(folder, **options, **more), folder, quiet=quiet)


def _follow(start: Callable[..., Any], folder: Path, *, quiet: bool, **more: Any) -> None:
    from convdkm.training.view import TerminalSink

    console = Console(highlight=False)
    sinks = [] if quiet else [TerminalSink(console)]
    with Interrupt() as interrupt:
        run = start(sinks=sinks, stop=interrupt, **more)
    if not run.leads:
        return
    if run.metrics:
        console.print(metrics_table(run.metrics))
    else:
        console.print(f"Stopped after step {run.step}; all is saved. Go on with")
        print(f"  convdkm resume {folder}")
    print(folder)
    if not run.metrics:
        sys.exit(130)


def _new_folder(dataset: str, preset: str) -> Path:
    name = f"{Path(dataset).stem or 'images'}-{preset}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder

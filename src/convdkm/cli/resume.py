"""``convdkm resume``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from convdkm.cli.arguments import DataDir, Device, MovedData, Quiet, RunFolder, option
from convdkm.cli.output import console, metrics_table, say, say_path
from convdkm.data.registry import checked_dataset
from convdkm.storage.files import read_mapping

if TYPE_CHECKING:
    from convdkm.config import RunConfig


def resume(
    run: RunFolder,
    data: MovedData = None,
    data_dir: DataDir = None,
    device: Device = None,
    epochs: Annotated[
        str | None, option("N", "total number of epochs, to train for longer")
    ] = None,
    *,
    quiet: Quiet = False,
) -> None:
    """Continue a run that was stopped.

    It continues from its last checkpoint, and gives the same results as if it had never been
    stopped. Its images must not have changed. The last line printed is the folder of the run.
    """
    from convdkm.training.folder import read_config

    given = {"data_dir": data_dir, "device": device, "epochs": epochs}
    options: dict[str, Any] = {n: value for n, value in given.items() if value is not None}
    settings = read_config(run)[0].updated(options)
    metrics = _final_metrics(run, settings)
    if metrics:
        say(
            f"This run is finished: {metrics['epochs']} epochs, {metrics['steps']} steps."
            " To go on nevertheless, ask for more with --epochs."
        )
        console().print(metrics_table(metrics))
        say_path(run)
        return
    from convdkm.cli.following import follow
    from convdkm.training.fit import resume as go_on

    place = None if data is None else checked_dataset(data)
    follow(lambda **more: go_on(run, data=place, **options, **more), settings, run, quiet=quiet)


def _final_metrics(folder: Path, settings: RunConfig) -> dict[str, Any]:
    """The figures of a run that has come to its last epoch; nothing for any other."""
    metrics = read_mapping(folder / "metrics.json") or {}
    try:
        return metrics if metrics["epochs"] >= settings.training.epochs else {}
    except (KeyError, TypeError):
        return {}

"""``convdkm resume``."""

from __future__ import annotations

from typing import Annotated, Any

from convdkm.cli.arguments import DataDir, Device, MovedData, Quiet, RunFolder, option
from convdkm.cli.output import console, metrics_table, say, say_path
from convdkm.data.registry import checked_dataset
from convdkm.storage.files import read_mapping


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
    metrics = read_mapping(run / "metrics.json") or {}
    epochs_done = metrics.get("epochs")
    if isinstance(epochs_done, int) and epochs_done >= settings.training.epochs:
        say(
            f"This run is finished: {epochs_done} epochs, {metrics['steps']} steps."
            " To go on nevertheless, ask for more with --epochs."
        )
        console().print(metrics_table(metrics))
        say_path(run)
        return
    from convdkm.cli.following import follow
    from convdkm.training.fit import resume as go_on

    place = None if data is None else checked_dataset(data)
    follow(lambda **more: go_on(run, data=place, **options, **more), settings, run, quiet=quiet)

"""``convdkm export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from convdkm.cli.arguments import CheckpointName, RunOrMachine, ViewsOption, argument, switch
from convdkm.cli.output import say
from convdkm.errors import InvalidInputError


def export(
    run: RunOrMachine,
    file: Annotated[Path, argument("FILE", "file to write: .onnx, .pt2 or .safetensors")],
    checkpoint: CheckpointName = "last",
    *,
    deterministic: Annotated[
        bool,
        switch(
            "--deterministic",
            "use running averages in place of statistics of the batch, and an integral in place of"
            " samples",
        ),
    ] = False,
    views: ViewsOption = None,
    force: Annotated[bool, switch("--force", "replace an existing file")] = False,
) -> None:
    """Export the machine of a run to one file.

    The ending of FILE is the format: .onnx for other programs, .pt2 for PyTorch without convdkm,
    .safetensors for convdkm predict and convdkm.load_predictor. The exported machine takes images
    with values from 0 to 1, in batches of any size, and returns the mean and the variance of the
    latent functions and the log-probabilities of the classes. Several views are part of the file.
    """
    from convdkm.cli.inputs import checked_views, open_run
    from convdkm.predicting.describing import CannotExportError
    from convdkm.predicting.exporting import require_onnx, write_onnx, write_program
    from convdkm.predicting.saving import save_predictor

    formats = {".onnx": write_onnx, ".pt2": write_program, ".safetensors": save_predictor}
    write = formats.get(file.suffix.lower())
    if write is None:
        known = ", ".join(formats)
        raise InvalidInputError(f"{file} has the ending of no known format; use one of {known}")
    if file.is_dir() or (file.exists() and not force):
        end = "is a folder" if file.is_dir() else "is there already; --force replaces it"
        raise InvalidInputError(f"{file} {end}")
    if write is write_onnx:
        require_onnx()
    predictor = open_run(run, checkpoint, "cpu").predictor(
        deterministic=deterministic, views=checked_views(views)
    )
    try:
        write(predictor, file)
    except CannotExportError as error:
        raise CannotExportError(
            f"{error}. On the command line: --deterministic"
            if not deterministic and "deterministic=True" in str(error)
            else str(error)
        ) from None
    size = file.stat().st_size / 1e6
    say(f"{file} ({size:.1f} MB): {', '.join(predictor.output_names)}", stderr=True)

"""``convdkm export``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from convdkm.cli.evaluate import open_run
from convdkm.cli.output import say
from convdkm.errors import InvalidInputError
from convdkm.predicting.exporting import require_onnx, write_onnx, write_program
from convdkm.predicting.predictor import CannotExportError, Predictor
from convdkm.predicting.saving import save_predictor

FORMATS: dict[str, Callable[[Predictor, Path], None]] = {
    ".onnx": write_onnx,
    ".pt2": write_program,
    ".safetensors": save_predictor,
}


def export_run(
    folder: Path, file: Path, *, checkpoint: str, deterministic: bool, force: bool
) -> None:
    """Write the machine of a run to a file; its ending is the format."""
    write = FORMATS.get(file.suffix.lower())
    if write is None:
        known = ", ".join(FORMATS)
        raise InvalidInputError(f"the ending of {file} says no format; it may be one of {known}")
    if file.is_dir() or (file.exists() and not force):
        end = "is a folder" if file.is_dir() else "is there already; --force replaces it"
        raise InvalidInputError(f"{file} {end}")
    if write is write_onnx:
        require_onnx()
    run = open_run(folder, checkpoint, "cpu")
    predictor = run.predictor(deterministic=deterministic)
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

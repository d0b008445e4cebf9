"""Predictors as files: tensors in safetensors, and a description of the steps as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from convdkm.errors import ConvDKMError
from convdkm.files import parse_json, plain_path, replacing
from convdkm.folded.base import build
from convdkm.folded.predictor import Predictor

FORMAT = 1
"""Version of the layout; raised whenever an older program could not read it."""

_KEY = "convdkm-predictor"


class PredictorFileError(ConvDKMError, RuntimeError):
    """A file that no predictor can be read from."""


def save_predictor(predictor: Predictor, path: Path) -> None:
    """Write a predictor, atomically."""
    predictor.require_exportable()
    header = json.dumps({"format": FORMAT, "predictor": predictor.description()})
    tensors = {
        name: value.detach().to("cpu", copy=True).contiguous()
        for name, value in predictor.state_dict().items()
    }
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={_KEY: header})


def load_predictor(path: str | Path) -> Predictor:
    """Read a predictor that :meth:`Predictor.save` wrote.

    Nothing in the file is run: it holds numbers, and the names of steps that this library knows.

    Raises:
        PredictorFileError: the file is none of a predictor, damaged, or of a newer format.
    """
    path = Path(path)
    if not path.is_file():
        raise PredictorFileError(f"there is no file {path}")
    try:
        with plain_path(path) as plain, safe_open(plain, framework="pt") as file:
            header = _header(path, file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        size = path.stat().st_size
        raise PredictorFileError(
            f"{path} ({size} bytes) is no safetensors file, or it is damaged or cut short: {error}"
        ) from None
    try:
        predictor = build(header["predictor"], tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise PredictorFileError(f"{path} describes no predictor: {error!r}") from None
    if not isinstance(predictor, Predictor):
        raise PredictorFileError(f"{path} describes a {type(predictor).__name__}, no predictor")
    return predictor.eval()


def _header(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    if _KEY not in metadata:
        run = " but a checkpoint of a run; `convdkm export RUN FILE` makes one of it"
        raise PredictorFileError(
            f"{path} is not a predictor{run if 'convdkm' in metadata else ''}; predictors are"
            " written by model.folded().save(path)"
        )
    header: dict[str, Any] = parse_json(metadata[_KEY])
    version = header.get("format")
    if not isinstance(version, int) or version < 1:
        raise PredictorFileError(f"{path} does not say which version of the format it has")
    if version > FORMAT:
        raise PredictorFileError(
            f"{path} has format {version}, and this version of convdkm reads up to {FORMAT};"
            " upgrade convdkm to read it"
        )
    return header

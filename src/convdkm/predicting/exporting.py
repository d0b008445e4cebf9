"""Predictors for other programs: ``torch.export`` and ONNX."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from convdkm.errors import InvalidInputError
from convdkm.predicting.describing import CannotExportError
from convdkm.predicting.predictor import Predictor
from convdkm.storage import digests

OPSET = 20
"""Version of ONNX's operators that files are written for."""

Shape = tuple[int, ...] | None

_NEEDED = ("onnx", "onnxscript")
_ANY_BATCH = {"images": {0: Dim("batch", min=1)}}


def exported_program(predictor: Predictor, image_shape: Shape) -> ExportedProgram:
    """See :meth:`Predictor.export`."""
    example = _example(predictor, image_shape)
    with torch.no_grad():
        return torch.export.export(predictor, (example,), dynamic_shapes=_ANY_BATCH, strict=False)


def write_program(predictor: Predictor, path: Path) -> None:
    """Write the exported program as a ``.pt2`` file, with names of outputs and classes."""
    program = exported_program(predictor, None)
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={"convdkm.json": json.dumps(_about(predictor))})
    with zipfile.ZipFile(content, "a") as archive:
        archive.comment = digests.LINE
    with digests.sealing(path) as temporary:
        temporary.write_bytes(content.getbuffer())


def write_onnx(predictor: Predictor, path: Path, image_shape: Shape = None) -> None:
    """See :meth:`Predictor.save_onnx`."""
    require_onnx()
    example = _example(predictor, image_shape)
    with torch.no_grad(), _quiet():
        made = torch.onnx.export(
            predictor,
            (example,),
            dynamo=True,
            dynamic_shapes=_ANY_BATCH,
            input_names=["images"],
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )
    if made is None:
        raise CannotExportError("torch.onnx gave no program for this machine")
    _name_outputs(made.model.graph, predictor.output_names)
    made.model.metadata_props.update(_about(predictor) | {digests.KEY: digests.BLANK})
    with digests.sealing(path) as temporary:
        temporary.write_bytes(made.model_proto.SerializeToString())


def _name_outputs(graph: Any, names: tuple[str, ...]) -> None:
    """Give the outputs their names; an intermediate result that has one of them gets another."""
    for node in graph:
        for value in node.outputs:
            if value.name in names:
                value.name = f"{value.name}_inside"
    for value, name in zip(graph.outputs, names, strict=True):
        value.name = name


def require_onnx() -> None:
    """Raise unless what ONNX needs is installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise InvalidInputError(
            f"ONNX files need {' and '.join(missing)}; install them by: pip install convdkm[onnx]"
        )


def _about(predictor: Predictor) -> dict[str, str]:
    """What a user of the file wants to know of it, as JSON texts."""
    return {
        "class_names": json.dumps(list(predictor.class_names)),
        "views": json.dumps(predictor.views),
        "outputs": json.dumps(list(predictor.output_names)),
    }


def _example(predictor: Predictor, image_shape: Shape) -> Tensor:
    """Two images to follow the program with."""
    predictor.require_exportable()
    expected = predictor.sample_shape
    shape = expected if image_shape is None else tuple(image_shape)
    fits = len(shape) == len(expected) and all(
        wanted in (None, given) for wanted, given in zip(expected, shape, strict=True)
    )
    if not fits or any(not isinstance(size, int) or size < 1 for size in shape):
        axes = ", ".join("any" if size is None else str(size) for size in expected)
        raise InvalidInputError(
            f"an exported machine takes images of one shape, which has to fit ({axes}); got"
            f" {image_shape}. Give it as image_shape=(channels, height, width)"
        )
    sizes = [size for size in shape if size is not None]
    return torch.full((2, *sizes), 0.5, dtype=predictor.dtype, device=predictor.device)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's own reports: it succeeds or raises."""
    loggers: list[Any] = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

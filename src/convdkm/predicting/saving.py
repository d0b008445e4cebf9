"""Predictors as files: tensors, and a description of the steps."""

from __future__ import annotations

from pathlib import Path

from convdkm.checks import wrong_kinds
from convdkm.choices import AugmentStage, ViewsName
from convdkm.errors import ConvDKMError
from convdkm.predicting.describing import rebuilt
from convdkm.predicting.predictor import Predictor
from convdkm.storage.tensor_file import TensorFormat


class PredictorFileError(ConvDKMError, RuntimeError):
    """A file that no predictor can be read from."""


FILES = TensorFormat(
    "convdkm-predictor",
    3,
    PredictorFileError,
    "predictors are written by model.folded().save(path), or `convdkm export RUN FILE`",
)


ABOUT = {"sample_shape": list[int | None], "class_names": list[str]}
"""What a predictor says of itself."""
SEEN = {"views": ViewsName, "stage": AugmentStage}
"""What it says where it sees several views of an image."""


def save_predictor(predictor: Predictor, path: Path) -> None:
    """Write a predictor, atomically."""
    predictor.require_exportable()
    FILES.write(path, predictor.state_dict(), {"predictor": predictor.description()})


def load_predictor(path: str | Path) -> Predictor:
    """Read a predictor that :meth:`Predictor.save` wrote.

    Nothing in the file is run: it holds numbers, and the names of steps that this library knows.

    Raises:
        PredictorFileError: the file is none of a predictor, damaged, or of a newer format.
    """
    path = Path(path)
    if not path.is_file():
        raise PredictorFileError(f"there is no file {path}")
    tensors, description = FILES.read(path)
    try:
        predictor = rebuilt(description["predictor"], tensors)
    except Exception as error:  # it may be anything, as what is built is what the file says
        raise PredictorFileError(f"{path} describes no predictor: {error!r}") from None
    if not isinstance(predictor, Predictor):
        kind = description["predictor"]["kind"]
        raise PredictorFileError(f"{path} describes a {kind}, no predictor")
    about = description["predictor"]["settings"]
    wrong = sorted(ABOUT.keys() - about.keys()) + wrong_kinds(about, ABOUT | SEEN)
    if wrong:
        raise PredictorFileError(f"{path} describes no predictor: its {wrong[0]} is wrong")
    return predictor.eval()

"""``convdkm predict``."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from convdkm.checks import check_choice
from convdkm.cli.evaluate import open_run
from convdkm.cli.output import MISSING, console, plain_table, warn
from convdkm.data import load_images
from convdkm.data.pictures import picture_header
from convdkm.errors import InvalidInputError
from convdkm.files import write_text
from convdkm.folded import load_predictor
from convdkm.prediction import ClassPrediction
from convdkm.training.run import as_images
from convdkm.training.world import find_device

Form = Literal["table", "csv", "json"]
AT_ONCE = 256
"""Images that a file's machine works on at a time."""
COLUMNS = ("image", "class", "probability", "entropy", "mutual_information")


def predict_images(
    folder: Path,
    paths: list[Path],
    *,
    form: str | None,
    output: Path | None,
    resize: bool,
    skip_bad: bool,
    checkpoint: str,
    device: str | None,
) -> None:
    """Predict image files, and print or write a row for each."""
    form = form or _form_of(output)
    check_choice("--format", form, Form)
    machine = _machine(folder, checkpoint, device)
    channels, height, width = machine.image_shape
    images, files = load_images(
        paths, image_size=(height, width), channels=channels, skip_bad=skip_bad, report=warn
    )
    if not resize:
        _require_size(files, height, width)
    rows = predicted_rows(machine, images, [str(path) for path in files])
    text = render(rows, form)
    if output is not None:
        write_text(output, text)
        plural = "" if len(rows) == 1 else "s"
        print(f"{len(rows)} prediction{plural} written to {output}", file=sys.stderr)
    else:
        print(text, end="")


class Machine(NamedTuple):
    """What predicts, and what it has to be told and asked."""

    predict: Callable[[Any], ClassPrediction]
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]


def _machine(path: Path, checkpoint: str, device: str | None) -> Machine:
    """The machine of a run, or of a file that ``convdkm export`` wrote."""
    if not path.is_file():
        run = open_run(path, checkpoint, device)
        return Machine(run.predict, run.class_names, run.image_shape)
    predictor = load_predictor(path)
    shape = tuple(size for size in predictor.sample_shape if size is not None)
    if len(shape) != 3 or not predictor.class_names:
        raise InvalidInputError(
            f"{path} does not say the size of its images and the names of its classes; export it"
            " from a run: convdkm export RUN FILE"
        )
    if device is not None:
        predictor.to(find_device(device))

    def predict(images: Any) -> ClassPrediction:
        prediction = predictor.predict(as_images(images), batch_size=AT_ONCE)
        assert isinstance(prediction, ClassPrediction)
        return prediction

    return Machine(predict, predictor.class_names, shape)


def _require_size(files: list[Path], height: int, width: int) -> None:
    for file in files:
        header = picture_header(file)
        if (header.height, header.width) != (height, width):
            raise InvalidInputError(
                f"the model was trained on images of {height}×{width} pixels, but {file} has"
                f" {header.height}×{header.width}; --resize brings all to the model's size"
            )


def _form_of(output: Path | None) -> str:
    """The format that the name of a file asks for."""
    ending = "" if output is None else output.suffix.lower().removeprefix(".")
    return ending if ending in ("csv", "json") else "table"


def predicted_rows(machine: Machine, images: object, names: list[str]) -> list[dict[str, object]]:
    """What is said of each image, with the probabilities of all classes."""
    prediction = machine.predict(images)
    probabilities = prediction.probs.cpu()
    information = (
        None
        if prediction.expected_entropy is None
        else prediction.mutual_information.cpu().tolist()
    )
    labels, entropies = prediction.labels.cpu().tolist(), prediction.entropy.cpu().tolist()
    rows: list[dict[str, object]] = []
    for index, (name, label) in enumerate(zip(names, labels, strict=True)):
        rows.append(
            {
                "image": name,
                "class": machine.class_names[label],
                "probability": probabilities[index, label].item(),
                "entropy": entropies[index],
                "mutual_information": None if information is None else information[index],
                "probabilities": dict(
                    zip(machine.class_names, probabilities[index].tolist(), strict=True)
                ),
            }
        )
    return rows


def render(rows: list[dict[str, object]], form: str) -> str:
    """The rows as a table, CSV or JSON."""
    if form == "json":
        return json.dumps(rows, indent=2, ensure_ascii=False) + "\n"
    if form == "csv":
        buffer = io.StringIO()
        classes = list(rows[0]["probabilities"]) if rows else []  # type: ignore[call-overload]
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([*COLUMNS, *(f"p({name})" for name in classes)])
        for row in rows:
            own = row["probabilities"]
            assert isinstance(own, dict)
            writer.writerow([*(row[column] for column in COLUMNS), *own.values()])
        return buffer.getvalue()
    table = plain_table(
        *(column.replace("_", " ") for column in COLUMNS),
        right=("probability", "entropy", "mutual information"),
    )
    for row in rows:
        figures = (row["entropy"], row["mutual_information"])
        table.add_row(
            str(row["image"]),
            str(row["class"]),
            f"{row['probability']:.1%}",
            *(MISSING if value is None else f"{value:.3f}" for value in figures),
        )
    screen = console()
    with screen.capture() as captured:
        screen.print(table)
    return captured.get()

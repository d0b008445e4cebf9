"""``convdkm predict``."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Literal

from convdkm.checks import check_choice
from convdkm.cli.evaluate import open_run
from convdkm.cli.output import MISSING, console, plain_table, warn
from convdkm.data import load_images
from convdkm.data.pictures import picture_header
from convdkm.errors import InvalidInputError
from convdkm.files import write_text
from convdkm.training.run import Run

Form = Literal["table", "csv", "json"]
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
    run = open_run(folder, checkpoint, device)
    channels, height, width = run.image_shape
    images, files = load_images(
        paths, image_size=(height, width), channels=channels, skip_bad=skip_bad, report=warn
    )
    if not resize:
        _require_size(files, height, width)
    rows = predicted_rows(run, images, [str(path) for path in files])
    text = render(rows, form)
    if output is not None:
        write_text(output, text)
        plural = "" if len(rows) == 1 else "s"
        print(f"{len(rows)} prediction{plural} written to {output}", file=sys.stderr)
    else:
        print(text, end="")


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


def predicted_rows(run: Run, images: object, names: list[str]) -> list[dict[str, object]]:
    """What is said of each image, with the probabilities of all classes."""
    prediction = run.predict(images)
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
                "class": run.class_names[label],
                "probability": probabilities[index, label].item(),
                "entropy": entropies[index],
                "mutual_information": None if information is None else information[index],
                "probabilities": dict(
                    zip(run.class_names, probabilities[index].tolist(), strict=True)
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

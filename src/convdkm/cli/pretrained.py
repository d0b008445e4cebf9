"""``convdkm pretrained``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from convdkm.cli.arguments import option
from convdkm.cli.output import MISSING, console, plain_table

NUMBERS = ("classes", "size", "accuracy", "log-likelihood", "calibration error")


def pretrained(
    folder: Annotated[
        Path | None,
        option("FOLDER", "where to look for files first (default: $CONVDKM_PRETRAINED)"),
    ] = None,
) -> None:
    """List the pretrained machines, with their figures on test images.

    A name in this list can be given to convdkm predict, evaluate, export, verify and train --from,
    and to convdkm.load_pretrained in Python.
    """
    from convdkm.pretrained import known, places

    folders = places(folder)
    rows = [
        (
            name,
            machine.dataset,
            "×".join(map(str, machine.image_shape)),
            str(len(machine.class_names)),
            f"{machine.size / 1e6:.2f} MB",
            *figures(machine.figures),
            "here" if any((each / machine.file).is_file() for each in folders) else MISSING,
        )
        for name, machine in known(folder).items()
    ]
    columns = ("name", "data", "images", *NUMBERS, "file")
    console().print(plain_table(*columns, rows=rows, right=NUMBERS))


def figures(found: Mapping[str, float]) -> tuple[str, str, str]:
    """Accuracy, log-likelihood and calibration error on test images, as text."""
    forms = {"test_accuracy": ".2%", "test_log_likelihood": ".4f", "test_ece": ".4f"}
    accuracy, likelihood, calibration = (
        format(found[name], form) if name in found else MISSING for name, form in forms.items()
    )
    return accuracy, likelihood, calibration

"""``convdkm report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from convdkm.checks import check_choice
from convdkm.cli.arguments import (
    CheckpointName,
    DataDir,
    Device,
    MovedData,
    argument,
    option,
    switch,
)
from convdkm.cli.output import say, say_path
from convdkm.data.registry import checked_dataset
from convdkm.errors import InvalidInputError


def report(
    runs: Annotated[
        list[Path],
        argument(
            "RUN…", "folders of runs, a folder that contains runs, or the folder of a comparison"
        ),
    ],
    output: Annotated[
        Path | None,
        option(
            "FILE",
            "file to write (default: report.html in the folder of the run, or in the current"
            " folder for several runs)",
            "--output",
            "-o",
        ),
    ] = None,
    images: Annotated[int, option("N", "images to show of each kind")] = 16,
    data: MovedData = None,
    *,
    no_data: Annotated[bool, switch("--no-data", "do not predict the test images")] = False,
    data_dir: DataDir = None,
    checkpoint: CheckpointName = "last",
    device: Device = None,
    force: Annotated[bool, switch("--force", "replace a file that is not such a page")] = False,
) -> None:
    """Write an HTML page about a run, or one that compares several.

    One file, with learning curves, calibration, confusions, images, and each layer's kernel beside
    the Gram matrix it learned. The last line printed is the path of the file.
    """
    from convdkm.lab.studies.comparison.folder import ComparisonFolder
    from convdkm.lab.studies.comparison.page import write_methods_page
    from convdkm.report.write import write_report
    from convdkm.runtime.allocator import keep_freed_memory
    from convdkm.training.checkpoint import Which

    check_choice("--checkpoint", checkpoint, Which)
    if data is not None and no_data:
        raise InvalidInputError("--data says where the images are, --no-data that none are needed")
    compared = [path for path in runs if ComparisonFolder.is_one(path)]
    if compared and len(runs) > 1:
        raise InvalidInputError(
            f"{compared[0]} is a comparison of methods, which has a page of its own; name it alone"
        )
    if compared:
        say_path(write_methods_page(compared[0], output, force=force))
        return
    keep_freed_memory()
    file = write_report(
        runs,
        output,
        checkpoint=checkpoint,  # type: ignore[arg-type]
        images=images,
        data=not no_data if data is None else checked_dataset(data),
        data_dir=data_dir,
        device=device,
        force=force,
        tell=lambda text: say(text, stderr=True),
    )
    say_path(file)

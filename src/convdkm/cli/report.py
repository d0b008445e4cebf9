"""``convdkm report``."""

from __future__ import annotations

from pathlib import Path

from convdkm.checks import check_choice
from convdkm.cli.output import say, say_path
from convdkm.cli.settings import checked_dataset
from convdkm.errors import InvalidInputError
from convdkm.report.write import write_report
from convdkm.runtime.allocator import keep_freed_memory
from convdkm.training.checkpoint import Which


def report_runs(
    runs: list[Path],
    *,
    output: Path | None,
    images: int,
    data: str | None,
    no_data: bool,
    data_dir: str | None,
    checkpoint: str,
    device: str | None,
    force: bool,
) -> None:
    """Write the page of one run or several; the last line printed is the file."""
    check_choice("--checkpoint", checkpoint, Which)
    if data is not None and no_data:
        raise InvalidInputError("--data says where the images are, --no-data that none are needed")
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

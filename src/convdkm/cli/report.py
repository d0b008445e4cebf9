"""``convdkm report``."""

from __future__ import annotations

from pathlib import Path

from convdkm.allocator import keep_freed_memory
from convdkm.checks import check_choice
from convdkm.cli.output import say, say_path
from convdkm.report.write import write_report
from convdkm.training.checkpoint import Which


def report_runs(
    runs: list[Path],
    *,
    output: Path | None,
    images: int,
    data: bool,
    data_dir: str | None,
    checkpoint: str,
    device: str | None,
    force: bool,
) -> None:
    """Write the page of one run or several; the last line printed is the file."""
    check_choice("--checkpoint", checkpoint, Which)
    keep_freed_memory()
    file = write_report(
        runs,
        output,
        checkpoint=checkpoint,  # type: ignore[arg-type]
        images=images,
        data=data,
        data_dir=data_dir,
        device=device,
        force=force,
        tell=lambda text: say(text, stderr=True),
    )
    say_path(file)

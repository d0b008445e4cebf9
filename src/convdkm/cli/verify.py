"""``convdkm verify``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from convdkm.cli.arguments import argument
from convdkm.errors import InvalidInputError
from convdkm.pretrained import located

if TYPE_CHECKING:
    from convdkm.storage.finding import Finding


def verify(
    paths: Annotated[
        list[Path],
        argument(
            "RUN|FILE…",
            "folders of runs, exported files, names of pretrained machines, or folders of kernels"
            " on disk",
        ),
    ],
) -> None:
    """Check files for damage.

    Prints one line for each file: ok, if its digest matches; readable, for tables and settings,
    which have no digest; no digest, if an older version wrote it; or damaged, and why. The exit
    code is 1 if a file is damaged.
    """
    every = [_findings(path) for path in paths]
    damaged = False
    for finding in (each for findings in every for each in findings):
        print(finding)
        damaged |= finding.state == "damaged"
    if damaged:
        raise typer.Exit(1)


def _findings(path: Path) -> Iterable[Finding]:
    """What is known of the files of a path."""
    from convdkm.lab.baselines.kernels.store import MANIFEST, verify_kernel
    from convdkm.training.folder import CHECKPOINTS, CONFIG, MARKER
    from convdkm.training.verifying import EXPORTED, verify_file, verify_run

    path = located(path)
    if any((path / name).exists() for name in (MARKER, CONFIG, CHECKPOINTS)):
        return verify_run(path)
    if (path / MANIFEST).is_file():
        return verify_kernel(path)
    if path.suffix.lower() in EXPORTED and path.is_file():
        return [verify_file(path)]
    reason = "there is nothing of that name" if not path.exists() else "it is something else"
    raise InvalidInputError(
        f"{path} is neither the folder of a run or of a kernel on disk, nor an exported file"
        f" ({', '.join(EXPORTED)}): {reason}"
    )

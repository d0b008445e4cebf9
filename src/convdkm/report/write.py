"""From runs to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from convdkm.data import Dataset
from convdkm.data.checksums import digest_of_file
from convdkm.errors import InvalidInputError
from convdkm.report.compare_page import compare_page
from convdkm.report.findings import Load, Tell, examine, gather, of_settings
from convdkm.report.page import GENERATOR
from convdkm.report.record import Record, runs_in
from convdkm.report.run_page import run_page
from convdkm.storage.files import require_regular, write_text
from convdkm.training.checkpoint import Which
from convdkm.training.folder import SPLIT
from convdkm.training.run import Run

PAGE = "report.html"
IMAGES = 16
"""Images of each kind that a page shows."""


def write_report(
    paths: Sequence[str | Path],
    output: str | Path | None = None,
    *,
    checkpoint: Which = "last",
    images: int = IMAGES,
    data: bool | str = True,
    data_dir: str | None = None,
    device: str | None = None,
    force: bool = False,
    tell: Tell = lambda _: None,
) -> Path:
    """Write the page of a run, or one that compares several.

    Args:
        paths: folders of runs, or a folder that holds some.
        output: the file; by default ``report.html`` in the run's folder, or in the current one
            where there are several runs.
        checkpoint: which one to show.
        images: how many images of each kind to show.
        data: predict the test images; without, the page shows what needs no images. A path is where
            the images of the runs are now, if they have moved.
        data_dir: where data sets are.
        device: where to compute.
        force: replace a file that is no such page.
        tell: is told what is being done.

    Returns:
        The file.
    """
    if not isinstance(images, int) or images < 0:
        raise InvalidInputError(f"images must not be negative, got {images!r}")
    folders = runs_in([Path(path) for path in paths])
    if not folders:
        raise InvalidInputError("there is no run to report on")
    alone = len(folders) == 1
    file = Path(output) if output is not None else (folders[0] if alone else Path()) / PAGE
    require_free(file, force=force)
    moved = {"data_dir": data_dir, "dataset": data if isinstance(data, str) else None}
    load = _cached({k: v for k, v in moved.items() if v is not None}) if data else None
    findings = []
    for folder in folders:
        say = tell if alone else partial(_say_of, folder, tell)
        findings.append(gather(folder, load, checkpoint, device, deep=alone, tell=say))
    write_text(file, run_page(findings[0], images) if alone else compare_page(findings, file))
    return file


def report_run(run: Run, output: str | Path | None, data: Dataset | None, images: int) -> Path:
    """Write the page of a run that is open; see :meth:`convdkm.Run.report`."""
    if output is None and run.folder is None:
        raise InvalidInputError(
            "this run is in memory only, so its page needs a file: run.report('report.html')"
        )
    file = Path(output) if output is not None else Path(run.folder or "") / PAGE
    require_free(file, force=False)
    load: Load = of_settings if data is None else lambda *_: data
    write_text(file, run_page(examine(run, Record.of(run), load), images))
    return file


def require_free(file: Path, *, force: bool) -> None:
    """Raise if writing would destroy something that is not a page of this kind."""
    if file.is_dir():
        raise InvalidInputError(f"{file} is a folder; name a file in it, such as {file / PAGE}")
    require_regular(file)
    if force or not file.exists():
        return
    with file.open("rb") as opened:
        start = opened.read(400)
    if start and GENERATOR.encode() not in start:
        raise InvalidInputError(
            f"{file} is there already, and is not a page of convdkm report; --force replaces it"
        )


def _say_of(folder: Path, tell: Tell, text: str) -> None:
    tell(f"{folder}: {text}")


def _cached(moved: Mapping[str, str]) -> Load:
    """Loads a data set once for all runs that were made on it in the same way.

    ``moved`` holds the options that say where it is now.
    """
    loaded: dict[tuple[str, str | None], tuple[Dataset, list[str]]] = {}

    def load(run: Run, tell: Tell) -> Dataset:
        config = run.config.updated(moved)
        split = None if run.folder is None else run.folder / SPLIT
        digest = digest_of_file(split) if split is not None and split.is_file() else None
        key = config.data.model_dump_json(), digest
        if key not in loaded:
            loaded.clear()
            notes: list[str] = []
            loaded[key] = of_settings(run, notes.append, config), notes
        data, notes = loaded[key]
        for note in notes:
            tell(note)
        return data

    return load

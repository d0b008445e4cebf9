"""The folder of a run: what in it belongs to the run, and who may write there.

A run writes into its folder alone, under the lock of its marker file. What it did not write is
never touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from convdkm.config import RunConfig
from convdkm.errors import CannotWriteError, ConvDKMError, InvalidInputError
from convdkm.storage.files import NO_ROOM, holder, locked, write_json, write_text
from convdkm.storage.text import in_shell
from convdkm.storage.yaml_file import read_yaml
from convdkm.training.checkpoint import Checkpoint, CheckpointError, CheckpointStore
from convdkm.training.environment import environment

if TYPE_CHECKING:
    from convdkm.training.sources import RunImages

MARKER = ".convdkm-run"
"""The file that makes a folder that of a run; it names the process that writes, or wrote last."""
CONFIG, SPLIT, ENVIRONMENT = "config.yaml", "split.json", "environment.json"
METRICS, REPORT = "metrics.json", "report.html"
CHECKPOINTS, TENSORBOARD = "checkpoints", "tensorboard"
REPLACED = "replaced-run"
"""Where the files of a run that was overwritten are kept, until the next one is."""

# Figures first and settings last: whoever reads while they are moved never finds figures alone.
_RECORDS = ("steps.csv", "epochs.csv", "layers.csv", "log.txt")
_FILES = (METRICS, REPORT, *_RECORDS, SPLIT, ENVIRONMENT, CONFIG)
_FOLDERS = {
    CHECKPOINTS: ("last.safetensors", "previous.safetensors", "best.safetensors", "previous.link"),
    TENSORBOARD: ("events.out.tfevents.*",),
}


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run: by its marker, or a checkpoint where it is older than that."""
    return (folder / MARKER).is_file() or (
        (folder / CONFIG).is_file() and CheckpointStore(folder / CHECKPOINTS).readable()
    )


def read_config(folder: Path) -> tuple[RunConfig, str | None]:
    """The settings of the run in ``folder``, and a warning where its file does not give them.

    Where that file is empty or missing, the settings are those of a checkpoint.
    """
    path = folder / CONFIG
    given = read_yaml(path) if path.is_file() else {}
    if given:
        return RunConfig.of(given, str(path)), None
    store = CheckpointStore(folder / CHECKPOINTS)
    if not store.names():
        raise InvalidInputError(_no_settings(folder))
    checkpoint, warning = store.load(store.names()[0])
    config = RunConfig.of(checkpoint.value("config"), str(store.folder))
    return config, (
        f"{warning + '; ' if warning else ''}{path} is {'empty' if path.is_file() else 'missing'};"
        f" the settings are those of the checkpoint at step {checkpoint.progress.step}"
    )


def _no_settings(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is not the folder of a run: it does not exist"
    if not (folder / MARKER).is_file():
        return f"{folder} is not the folder of a run: it has no {CONFIG}"
    command = holder(folder / MARKER).get("command")
    return (
        f"the run in {folder} was stopped before its settings were written, so that there is"
        " nothing to go on with; start it again."
        + (f" It was made by\n  {command}" if command else "")
    )


class Writer:
    """Writes a run into its folder; see :func:`writing`."""

    def __init__(self, folder: Path, *, replaces: bool) -> None:
        self.folder, self.replaces = folder, replaces

    def announce(self, config: RunConfig) -> None:
        """Note the settings of a run that is about to begin, so that ``resume`` can begin it."""
        if not self.replaces:
            write_text(self.folder / CONFIG, config.to_yaml())

    def begin(self, config: RunConfig, images: RunImages) -> str | None:
        """Make room, and write the settings and the split.

        Returns what to tell the user of a run that was here.
        """
        told = None
        if self.replaces:
            aside = _set_aside(self.folder)
            told = f"the run that was here is in {aside} until the next one is replaced"
        write_text(self.folder / CONFIG, config.to_yaml())
        images.split.write(self.folder / SPLIT)
        write_json(self.folder / ENVIRONMENT, environment())
        return told


@contextmanager
def writing(folder: Path, *, overwrite: bool = False, resuming: bool = False) -> Iterator[Writer]:
    """Be the one process that writes a run into a folder.

    A new run takes a folder that is absent or empty, or that of a run which never began. Where it
    fails before its first checkpoint, nothing is left of it.

    Args:
        folder: of the run.
        overwrite: take the place of a run that is there; its files are moved aside.
        resuming: go on with the run that is there.
    """
    if not resuming:
        _require_free(folder, overwrite)
    made = not folder.exists()
    taken = f"the run in {folder} is being written"
    advice = "wait until it is done, or stop it first"
    begun = CheckpointStore(folder / CHECKPOINTS)
    with _saying_what_is_saved(folder, begun), locked(folder / MARKER, taken, advice):
        if not resuming and not overwrite and begun.names():
            _require_free(folder, overwrite)  # another process was quicker
        for leftover in _leftovers(folder):
            leftover.unlink()
        fresh = not begun.names()
        try:
            yield Writer(folder, replaces=not resuming and not fresh)
        except BaseException:
            if fresh and not resuming and not begun.names():
                for path in (*_written(folder), folder / MARKER):
                    path.unlink(missing_ok=True)
                for name in _FOLDERS:
                    _remove_if_empty(folder / name)
                if made:
                    _remove_if_empty(folder)
            raise


@contextmanager
def _saying_what_is_saved(folder: Path, store: CheckpointStore) -> Iterator[None]:
    """Let an error of writing say what of the run in ``folder`` is saved, and how to go on.

    Nothing more is saved then: a checkpoint of the moment would be ahead of the run's tables, from
    which the rows that could not be written would be missing for good.
    """
    try:
        yield
    except OSError as error:
        if not (isinstance(error, CannotWriteError) or error.errno in NO_ROOM):
            raise
        try:
            checkpoint, _ = store.load()
        except CheckpointError:
            saved = "Nothing of the run is saved; train again when it can be"
        else:
            saved = (
                f"Saved so far is step {checkpoint.progress.step}, in {checkpoint.source}. When the"
                f" folder can be written to, go on with\n  convdkm resume {in_shell(folder)}"
            )
        raise CannotWriteError(f"{error}. {saved}") from error


def _written(folder: Path) -> list[Path]:
    """What a run wrote into its folder, but for the marker.

    A link in the place of one of its folders is listed itself: nothing behind it is.
    """
    found = [folder / name for name in _FILES if os.path.lexists(folder / name)]
    for name, patterns in _FOLDERS.items():
        inner = folder / name
        if inner.is_symlink():
            found.insert(0, inner)
        elif inner.is_dir():
            found[:0] = [path for pattern in patterns for path in sorted(inner.glob(pattern))]
    return found


def _leftovers(folder: Path) -> list[Path]:
    """What a killed process left half-written."""
    inner = folder / CHECKPOINTS
    names = [folder / name for name in _FILES]
    names += [] if inner.is_symlink() else [inner / name for name in _FOLDERS[CHECKPOINTS]]
    return [path for name in names for path in name.parent.glob(f".{name.name}.*.tmp")]


def _require_free(folder: Path, overwrite: bool) -> None:
    """Raise if a folder is in use: one that is, is never touched without leave."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInputError(f"{folder} is a file; a run needs a folder")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not is_run(folder):
        raise InvalidInputError(
            f"{folder} is not empty and does not hold a run, so it is not overwritten"
            if overwrite
            else f"{folder} is not empty, and does not hold a run; choose another folder"
        )
    if not overwrite and CheckpointStore(folder / CHECKPOINTS).names():
        raise InvalidInputError(
            f"{folder} is not empty; choose another folder, go on with"
            f" `convdkm resume {folder}`, or replace it with --overwrite (overwrite=True)"
        )
    aside = folder / REPLACED
    if os.path.lexists(aside) and (aside.is_symlink() or not (aside / MARKER).is_file()):
        raise InvalidInputError(
            f"{aside} is where --overwrite keeps the run that it replaces, and it is something"
            " else; move it away, or choose another folder"
        )


def _set_aside(folder: Path) -> Path:
    """Move what a run wrote to a folder inside; what was there from an earlier one goes."""
    aside = folder / REPLACED
    for path in _written(aside):
        path.unlink()
    aside.mkdir(exist_ok=True)
    (aside / MARKER).touch()
    for path in _written(folder):
        target = aside / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        os.replace(path, target)
    for name in _FOLDERS:
        _remove_if_empty(folder / name)
    return aside


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def same_machine(config: RunConfig, checkpoint: Checkpoint) -> tuple[RunConfig, str | None]:
    """Settings with the machine that a checkpoint was trained with, and a warning if they differ.

    Where the data lies and how it is worked on may change; the machine and its whitening may not.
    """
    try:
        before = RunConfig.of(checkpoint.value("config"))
    except ConvDKMError:
        return config, None
    kept = config.updated(
        {
            "model": before.model.model_dump(),
            "whitening": before.training.whitening,
            "zca_epsilon": before.training.zca_epsilon,
        }
    )
    if kept == config:
        return config, None
    flat = kept.flat()
    changed = [name for name, value in config.flat().items() if flat[name] != value]
    return kept, (
        f"{CONFIG} describes another machine than the checkpoint ({', '.join(changed)}), which is"
        " taken as it was trained"
    )

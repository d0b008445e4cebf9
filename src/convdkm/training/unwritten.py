"""What is left of a run whose files cannot be written any more, such as on a full disk."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from convdkm.errors import CannotWriteError
from convdkm.storage.files import NO_ROOM
from convdkm.training.checkpoint import CheckpointError, CheckpointStore


@contextmanager
def saying_what_is_saved(folder: Path, store: CheckpointStore) -> Iterator[None]:
    """Let an error of writing say what of the run in ``folder`` is saved, and how to go on.

    Nothing more is saved then: a checkpoint of the moment would be ahead of the run's tables, from
    which the rows that could not be written would be missing for good.
    """
    try:
        yield
    except OSError as error:
        if not (isinstance(error, CannotWriteError) or error.errno in NO_ROOM):
            raise
        raise CannotWriteError(f"{error}. {_what_is_saved(folder, store)}") from error


def _what_is_saved(folder: Path, store: CheckpointStore) -> str:
    try:
        checkpoint, _ = store.load()
    except CheckpointError:
        return "Nothing of the run is saved; train again when it can be"
    return (
        f"Saved so far is step {checkpoint.progress.step}, in {checkpoint.source}. When the folder"
        f" can be written to, go on with\n  convdkm resume {shlex.quote(str(folder))}"
    )

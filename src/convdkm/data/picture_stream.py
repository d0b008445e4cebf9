"""Picture files in batches, however many: decoded ahead by threads, and never all in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from convdkm.data.pictures import (
    BadFiles,
    Report,
    UnreadableImageError,
    read_picture,
    without_remarks,
)
from convdkm.data.pixels import check_channels
from convdkm.errors import InvalidInputError

THREADS = 2
PIECE = 32
"""Pictures that a thread decodes at a time."""


class PictureBatch(NamedTuple):
    """Images ``(N, channels, height, width)``, and the positions of their files."""

    positions: list[int]
    images: Tensor


def stream_pictures(
    paths: Sequence[str],
    shape: tuple[int, int, int],
    *,
    batch: int,
    first: int = 0,
    resize: bool = False,
    skip_bad: bool = False,
    report: Report | None = None,
) -> Iterator[PictureBatch]:
    """Pictures of one shape, batch by batch, with the next batch decoded meanwhile.

    A batch is made of the same files wherever the stream begins. An unreadable file is an error, or
    with ``skip_bad`` left out and named to ``report``. Close the iterator if it is left early.

    Args:
        paths: of the files.
        shape: channels, height and width of the images.
        batch: files of a batch.
        first: the file to begin with, the first of a batch.
        resize: bring pictures to the shape; by default another size is an error.
    """
    check_channels(shape[0])
    bad = BadFiles(skip_bad, report)
    pending: deque[tuple[range, Future[list[Tensor | UnreadableImageError]]]] = deque()
    pool = ThreadPoolExecutor(THREADS, "pictures")
    starts = iter(range(first, len(paths), batch))

    def submit_batch() -> None:
        for start in starts:
            end = min(start + batch, len(paths))
            for piece in range(start, end, PIECE):
                positions = range(piece, min(piece + PIECE, end))
                some = [paths[position] for position in positions]
                pending.append((positions, pool.submit(_read, some, shape, resize)))
            return

    with without_remarks():
        try:
            submit_batch()
            for start in range(first, len(paths), batch):
                submit_batch()
                kept: list[int] = []
                images: list[Tensor] = []
                while pending and pending[0][0].start < start + batch:
                    positions, future = pending.popleft()
                    for position, found in zip(positions, future.result(), strict=True):
                        with bad.noticed(Path(paths[position])):
                            if isinstance(found, UnreadableImageError):
                                raise found
                            kept.append(position)
                            images.append(found)
                if kept:
                    yield PictureBatch(kept, torch.stack(images))
        finally:
            pool.shutdown(cancel_futures=True)


def _read(
    paths: Sequence[str], shape: tuple[int, int, int], resize: bool
) -> list[Tensor | UnreadableImageError]:
    """The pictures of some files, or what is wrong with them."""
    channels, *size = shape
    height, width = size
    found: list[Tensor | UnreadableImageError] = []
    for path in paths:
        try:
            picture = read_picture(Path(path), (height, width) if resize else None, channels)
        except UnreadableImageError as error:
            found.append(error)
            continue
        if list(picture.shape[1:]) != size:
            raise InvalidInputError(
                f"the model was trained on images of {height}×{width} pixels, but {path} has"
                f" {picture.shape[1]}×{picture.shape[2]}; --resize brings all to the model's size"
            )
        found.append(picture)
    return found

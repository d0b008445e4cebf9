"""Picture files in batches, however many: decoded ahead by threads, and never all in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from convdkm.data.pictures import (
    Report,
    UnreadableImageError,
    leaving_out,
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
        shape: channels, height and width of the images.
        batch: files of a batch.
        first: the file to begin with, the first of a batch.
        resize: bring pictures to the shape; by default another size is an error.
    """
    check_channels(shape[0])
    pool = ThreadPoolExecutor(THREADS, "pictures")

    def submitted(start: int) -> list[tuple[range, Future[list[Tensor | UnreadableImageError]]]]:
        """The files of a batch, a few to each thread."""
        files = range(start, min(start + batch, len(paths)))
        few = [files[piece : piece + PIECE] for piece in range(0, len(files), PIECE)]
        return [(part, pool.submit(_read, [paths[i] for i in part], shape, resize)) for part in few]

    batches = map(submitted, range(first, len(paths), batch))  # as they are asked for
    with without_remarks():
        try:
            pending = next(batches, None)
            while pending is not None:
                following = next(batches, None)  # decoded meanwhile
                kept: list[int] = []
                images: list[Tensor] = []
                for positions, future in pending:
                    for position, found in zip(positions, future.result(), strict=True):
                        with leaving_out(Path(paths[position]), skip_bad, report):
                            if isinstance(found, UnreadableImageError):
                                raise found
                            kept.append(position)
                            images.append(found)
                if kept:
                    yield PictureBatch(kept, torch.stack(images))
                pending = following
        finally:
            pool.shutdown(cancel_futures=True)


def _read(
    paths: Sequence[str], shape: tuple[int, int, int], resize: bool
) -> list[Tensor | UnreadableImageError]:
    """The pictures of some files, or what is wrong with them."""
    channels, height, width = shape
    found: list[Tensor | UnreadableImageError] = []
    for path in paths:
        try:
            picture = read_picture(Path(path), (height, width) if resize else None, channels)
        except UnreadableImageError as error:
            found.append(error)
            continue
        if picture.shape != shape:
            raise InvalidInputError(
                f"the model was trained on images of {height}×{width} pixels, but {path} has"
                f" {picture.shape[1]}×{picture.shape[2]}; --resize brings all to the model's size"
            )
        found.append(picture)
    return found

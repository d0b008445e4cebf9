"""Which places of an image lie under a filter (the sums over d in Eq. 8 and 11)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

Place = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]


def same_padding(size: Place, dilation: Place) -> Pads:
    """Zeros (before, after) each axis that centre a filter; an odd one goes after the image."""
    pads = []
    for taps, spread in zip(size, dilation, strict=True):
        missing = spread * (taps - 1)
        pads.append((missing // 2, missing - missing // 2))
    return tuple(pads)


def windows(
    space: Place, size: Place, stride: Place, dilation: Place, padding: Pads
) -> tuple[Place, Iterator[tuple[Place, list[tuple[Place, Place | None]]]]]:
    """The grid of a filter's positions, and what lies under it at each of them.

    Yields ``(output place, [(offset, input place or None), …])`` with one entry for each of the D
    offsets of the filter; None is a zero put around the image.
    """
    starts = [
        list(range(-before, length + after - spread * (taps - 1), step))
        for length, taps, step, spread, (before, after) in zip(
            space, size, stride, dilation, padding, strict=True
        )
    ]

    def under() -> Iterator[tuple[Place, list[tuple[Place, Place | None]]]]:
        for output in itertools.product(*(range(len(along)) for along in starts)):
            found: list[tuple[Place, Place | None]] = []
            for offset in itertools.product(*map(range, size)):
                place = tuple(
                    along[out] + tap * spread
                    for along, out, tap, spread in zip(
                        starts, output, offset, dilation, strict=True
                    )
                )
                inside = all(0 <= p < length for p, length in zip(place, space, strict=True))
                found.append((offset, place if inside else None))
            yield output, found

    return tuple(len(along) for along in starts), under()

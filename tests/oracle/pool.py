"""Average pooling and the top layers that collapse space (appendix E)."""

from __future__ import annotations

import numpy as np

from oracle.blocks import Array, Blocks
from oracle.windows import Pads, Place, windows


def nystrom(gram: Blocks, image: int, places: list[Place]) -> Array:
    """Corrected Nyström approximation of G_tt among some places of one image (appendix E.3).

    G_ti G_ii⁻¹ G_it, with its diagonal replaced by the true one.
    """
    columns = np.stack([gram.it[(image, slice(None), *place)] for place in places], 1)
    approximate = columns.T @ np.linalg.inv(gram.ii) @ columns
    np.fill_diagonal(approximate, [gram.tt[(image, *place)] for place in places])
    return approximate


def _average(gram: Blocks, image: int, places: list[Place]) -> tuple[Array, float]:
    columns = [gram.it[(image, slice(None), *place)] for place in places]
    return sum(columns) / len(places), nystrom(gram, image, places).sum() / len(places) ** 2


def average_pool(gram: Blocks, size: Place, stride: Place, padding: Pads) -> Blocks:
    """Averages over windows, of the places inside the image only."""
    output, positions = windows(gram.space, size, stride, (1,) * len(size), padding)
    count, points = gram.it.shape[:2]
    it, tt = np.zeros((count, points, *output)), np.zeros((count, *output))
    for place, under in positions:
        inside = [below for _, below in under if below is not None]
        for image in range(count):
            index = (image, slice(None), *place)
            it[index], tt[(image, *place)] = _average(gram, image, inside)
    return Blocks(gram.ii, it, tt)


def global_average_pool(gram: Blocks) -> Blocks:
    """Averages over all places (appendix E.3)."""
    pairs = [_average(gram, image, gram.places) for image in range(len(gram.tt))]
    return Blocks(gram.ii, np.array([it for it, _ in pairs]), np.array([tt for _, tt in pairs]))


def flatten(gram: Blocks, C: Array | None = None) -> Blocks:
    """The linear top layer (appendix E.1), with C of shape ``(P_out, P_in, *space)``.

    Without C each inducing point stands for the image that is itself everywhere: C_s = I.
    """
    points, places = len(gram.ii), gram.places
    if C is None:
        C = np.broadcast_to(
            np.eye(points).reshape(points, points, *(1,) * len(gram.space)),
            (points, points, *gram.space),
        )
    ii, it = np.zeros((len(C), len(C))), np.zeros((len(gram.tt), len(C)))
    tt = np.zeros(len(gram.tt))
    for place in places:
        C_s = C[(slice(None), slice(None), *place)]
        ii += C_s @ gram.ii @ C_s.T / len(places)
        for image in range(len(gram.tt)):
            it[image] += C_s @ gram.it[(image, slice(None), *place)] / len(places)
            tt[image] += gram.tt[(image, *place)] / len(places)
    return Blocks(ii, it, tt)

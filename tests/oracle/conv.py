"""The kernelised convolution Γ with mixing weights C (Eq. 17 to 19, appendix B)."""

from __future__ import annotations

import numpy as np

from oracle.blocks import Array, Blocks
from oracle.windows import Pads, Place, windows


def convolve(
    omega: Blocks, C: Array, *, stride: Place, dilation: Place, padding: Pads, border: str
) -> Blocks:
    """Γ of Ω, with C of shape ``(P_out, P_in, *size)``.

    Places outside the image contribute zero. ``border="inside"`` divides the sum of variances by
    the number of places inside the image; nothing else changes.
    """
    after, _, *size = C.shape
    count, filter_places = len(omega.tt), int(np.prod(size))
    ii = np.zeros((after, after))
    for offset in np.ndindex(*size):
        C_d = C[(slice(None), slice(None), *offset)]
        ii += C_d @ omega.ii @ C_d.T / filter_places

    output, positions = windows(omega.space, tuple(size), stride, dilation, padding)
    it, tt = np.zeros((count, after, *output)), np.zeros((count, *output))
    for place, under in positions:
        inside = [(offset, below) for offset, below in under if below is not None]
        divisor = filter_places if border == "zero" else len(inside)
        for offset, below in inside:
            C_d = C[(slice(None), slice(None), *offset)]
            for image in range(count):
                column = omega.it[(image, slice(None), *below)]
                it[(image, slice(None), *place)] += C_d @ column / filter_places
                tt[(image, *place)] += omega.tt[(image, *below)] / divisor
    return Blocks(ii, it, tt)


def mix(gram: Blocks, C: Array) -> Blocks:
    """Γ with a filter of one place: the inducing points are replaced by combinations of them."""
    it = np.zeros((len(gram.tt), len(C), *gram.space))
    for image in range(len(gram.tt)):
        for place in gram.places:
            column = (image, slice(None), *place)
            it[column] = C @ gram.it[column]
    return Blocks(C @ gram.ii @ C.T, it, gram.tt)

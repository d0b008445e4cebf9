"""From the whitening of a run to an operation of constants."""

from __future__ import annotations

from torch import nn

from convdkm.data.whitening import ZCA, NoWhitening, Standardise, Whitening
from convdkm.errors import NotInitialisedError
from convdkm.ops.base import Operation, constant
from convdkm.ops.images import ImageMap, ImageScaling


def folded_whitening(whitening: Whitening) -> nn.Module | None:
    """The map of images as constants; None if it is the identity."""
    if isinstance(whitening, NoWhitening):
        return None
    made: Operation
    if type(whitening) is ZCA:
        if whitening.mean is None or whitening.matrix is None:
            raise NotInitialisedError("call fit(images) before whitening")
        made = ImageMap(whitening.mean, whitening.matrix)
    elif type(whitening) is Standardise:
        if whitening.mean is None or whitening.deviation is None:
            raise NotInitialisedError("call fit(images) before whitening")
        factor = 1 / whitening.deviation.double()
        made = ImageScaling(factor, -whitening.mean.double() * factor)
    else:
        return constant(whitening)
    return made.frozen()

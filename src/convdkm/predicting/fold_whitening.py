"""From the whitening of a run to its folded form."""

from __future__ import annotations

from torch import nn

from convdkm.data.whitening import ZCA, NoWhitening, Standardise, Whitening
from convdkm.errors import NotInitialisedError
from convdkm.predicting.base import Folded
from convdkm.predicting.ends import FoldedScaling, FoldedWhitening


class KeptWhitening(Folded):
    """A whitening as it is."""

    obstacle = "is a whitening that is not one of the library's own"

    def __init__(self, whitening: nn.Module) -> None:
        super().__init__()
        self.whitening = whitening
        self.forward = whitening.forward


def folded_whitening(whitening: Whitening) -> Folded | None:
    """The map of images as constants; None if it is the identity."""
    if isinstance(whitening, NoWhitening):
        return None
    if isinstance(whitening, ZCA) and type(whitening) is ZCA:
        if whitening.mean is None or whitening.matrix is None:
            raise NotInitialisedError("call fit(images) before whitening")
        return FoldedWhitening(mean=whitening.mean, matrix=whitening.matrix)
    if isinstance(whitening, Standardise) and type(whitening) is Standardise:
        if whitening.mean is None or whitening.deviation is None:
            raise NotInitialisedError("call fit(images) before whitening")
        factor = 1 / whitening.deviation.double()
        return FoldedScaling(factor=factor, offset=-whitening.mean.double() * factor)
    return KeptWhitening(whitening)

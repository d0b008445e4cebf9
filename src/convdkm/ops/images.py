"""Operations on whole images, before anything else."""

from __future__ import annotations

from torch import Tensor

from convdkm.ops.base import Operation


class ImageScaling(Operation):
    """Every channel scaled and shifted: ``factor · x + offset``, both ``(channels,)``."""

    def __init__(self, factor: Tensor, offset: Tensor) -> None:
        self.factor, self.offset = factor, offset

    def forward(self, images: Tensor) -> Tensor:
        shape = (-1, *(1,) * (images.ndim - 2))
        return images * self.factor.reshape(shape) + self.offset.reshape(shape)


class ImageMap(Operation):
    """A linear map of whole images: ``(x − mean) · matrix``."""

    def __init__(self, mean: Tensor, matrix: Tensor) -> None:
        self.mean, self.matrix = mean, matrix

    def forward(self, images: Tensor) -> Tensor:
        return ((images.flatten(1) - self.mean) @ self.matrix).reshape(images.shape)

r"""ZCA whitening: decorrelate the pixels, staying as close to the image as possible."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from convdkm.errors import InvalidInputError, NotInitialisedError


class ZCA(nn.Module):
    r"""Regularised ZCA whitening of images.

    .. math:: x \leftarrow U (\Lambda + \epsilon\bar\lambda I)^{-1/2} U^T (x - \bar x),
              \qquad \mathrm{Cov}(x) = U \Lambda U^T

    with :math:`\bar\lambda` the mean eigenvalue, after each channel was brought to mean 0 and
    variance 1; then each channel once more.

    Args:
        epsilon: the regulariser ε, 0.1 in the paper.
    """

    mean: Tensor | None
    matrix: Tensor | None

    def __init__(self, epsilon: float = 0.1) -> None:
        super().__init__()
        if not epsilon >= 0:
            raise InvalidInputError(f"epsilon must not be negative, got {epsilon}")
        self.epsilon = epsilon
        self.register_buffer("mean", None)
        self.register_buffer("matrix", None)

    @torch.no_grad()
    def fit(self, images: Tensor) -> ZCA:
        """Fit to training images ``(N, channels, *space)``; returns itself."""
        if images.ndim < 3 or len(images) < 2:
            raise InvalidInputError(
                f"whitening is fitted to images (N, channels, *space), got {tuple(images.shape)}"
            )
        first = _ChannelScale(images)
        flat = first(images).flatten(1).double()
        mean = flat.mean(0)
        flat -= mean
        values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
        shrunk = (values.clamp(min=0) + self.epsilon * values.mean()).rsqrt()
        rotation = (vectors * shrunk) @ vectors.T
        second = _ChannelScale((flat @ rotation).reshape(images.shape))
        # One affine map x ↦ (x − mean) matrix does all three steps.
        centre = first.mean.flatten().double() + mean * first.deviation.flatten().double()
        matrix = rotation / first.deviation.flatten()[:, None] / second.deviation.flatten()[None, :]
        self.mean, self.matrix = centre.float(), matrix.float()
        return self

    def forward(self, images: Tensor) -> Tensor:
        if self.mean is None or self.matrix is None:
            raise NotInitialisedError("call fit(images) before whitening")
        flat = images.flatten(1)
        if flat.shape[1] != len(self.mean):
            raise InvalidInputError(
                f"this whitening was fitted to {len(self.mean)} pixels, got {flat.shape[1]}"
            )
        whitened = (flat - self.mean.to(flat.dtype)) @ self.matrix.to(flat.dtype)
        return whitened.reshape(images.shape)


class _ChannelScale:
    """Mean and standard deviation of every channel, spread over the pixels."""

    def __init__(self, images: Tensor) -> None:
        axes = (0, *range(2, images.ndim))
        spread = images.new_ones(1, *images.shape[1:])
        self.mean = images.mean(axes, keepdim=True) * spread
        deviation = images.std(axes, correction=0, keepdim=True) * spread
        self.deviation = deviation.clamp(min=torch.finfo(images.dtype).eps)

    def __call__(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.deviation

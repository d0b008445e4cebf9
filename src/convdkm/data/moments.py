"""Mean and covariance of the pixels of many images, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_IMAGES, _PIXELS = 2048, 512


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean ``(P,)`` and covariance ``(P, P)`` of P pixels in float64; channels lie one by one."""

    mean: Tensor
    covariance: Tensor
    channels: int

    @staticmethod
    def of(images: Tensor) -> Moments:
        """Moments of ``(N, channels, *space)``, summed over chunks in float64."""
        flat = images.flatten(1)
        chunks = flat.split(_IMAGES)
        mean = torch.stack([chunk.double().sum(0) for chunk in chunks]).sum(0) / len(flat)
        covariance = mean.new_zeros(len(mean), len(mean))
        for chunk in chunks:
            centred = chunk.double() - mean
            # The matrix is symmetric: blocks on and above its diagonal are half the work.
            for start in range(0, len(mean), _PIXELS):
                block = slice(start, start + _PIXELS)
                covariance[block, start:].addmm_(centred[:, block].T, centred[:, start:])
        covariance = covariance.triu() + covariance.triu(1).T
        return Moments(mean, covariance / len(flat), images.shape[1])

    def channel_deviation(self) -> Tensor:
        """Standard deviation of each channel over images and pixels, one entry a pixel."""
        around = (self.mean - self.channel_mean(self.mean)).square()
        return self.channel_root_mean(self.covariance.diagonal() + around)

    def channel_mean(self, values: Tensor) -> Tensor:
        """Mean of each channel, one entry a pixel."""
        by_channel = values.reshape(self.channels, -1)
        return by_channel.mean(1, keepdim=True).expand_as(by_channel).flatten()

    def channel_root_mean(self, variances: Tensor) -> Tensor:
        """Root of the mean of each channel, one entry a pixel, and 1 for a constant channel."""
        by_channel = variances.reshape(self.channels, -1)
        root = by_channel.mean(1, keepdim=True).clamp(min=0).sqrt()
        smallest = torch.finfo(torch.float32).eps
        return torch.where(root > smallest, root, 1).expand_as(by_channel).flatten()

"""Tiny images whose classes a method can tell apart."""

import pytest
import torch


def striped(count, *, size=8, channels=1, seed=0, noise=0.3):
    """Horizontal, vertical and diagonal stripes in noise: three classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    row, column = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    phases = torch.stack([row, column, row + column]).float()
    shift = 4 * torch.rand(count, 1, 1, generator=generator)
    stripes = torch.sin(2 * torch.pi * (phases[labels] + shift) / 4)
    images = stripes.unsqueeze(1).expand(-1, channels, -1, -1)
    return images + noise * torch.randn(images.shape, generator=generator), labels


@pytest.fixture(scope="session")
def stripes():
    """Training and test images: ``(images, labels), (images, labels)``."""
    return striped(90, seed=1), striped(60, seed=2)

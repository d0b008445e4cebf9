"""Γ ∘ arc-cosine against the covariance of finite random convolutional networks (Eq. 8, 9, 17)."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import convdkm as dkm
from oracle.adapter import array, blocks
from oracle.cases import generator_of, normal

NETWORKS, CHANNELS, HIDDEN = 4000, 2, 16
IMAGES, FIRST, SECOND = 2, 4, 3


def _relu(values):
    """The nonlinearity that keeps the mean square of a Gaussian."""
    return 2**0.5 * torch.relu(values)


@pytest.mark.parametrize(
    ("space", "size", "stride"), [((5,), 3, 1), ((4, 3), 3, 1), ((4, 4), 2, 2), ((2, 3, 2), 2, 1)]
)
def test_covariance_of_random_networks(space, size, stride):
    """Two convolutions with a ReLU between; the covariance is unbiased at any width.

    Inducing points of the first layer are patches of the input; those of the second are patches
    mixed from the first layer's inducing activations by C, and see the same weights as the images.
    """
    ndim = len(space)
    generator = generator_of(f"networks {space} {size} {stride}")
    places = size**ndim
    images = normal(generator, IMAGES, CHANNELS, *space)
    first = dkm.PatchInput(CHANNELS, FIRST, size, ndim=ndim)
    first.initialise(images, generator)
    second = dkm.Conv(FIRST, SECOND, size, stride=stride, ndim=ndim)
    second.draw_weights(generator)
    patches = first.inducing.detach()
    C = second.weight.detach()
    with torch.no_grad():
        expected = blocks(second(dkm.ArcCosine()(first(images))))

    convolution = (F.conv1d, F.conv2d, F.conv3d)[ndim - 1]
    W1 = normal(generator, NETWORKS, HIDDEN, CHANNELS, *(size,) * ndim)
    W1 *= (places * CHANNELS) ** -0.5
    W2 = normal(generator, NETWORKS, HIDDEN, *(size,) * ndim) * (places * HIDDEN) ** -0.5

    hidden = convolution(first.window.pad(images), W1.flatten(0, 1))
    hidden = _relu(hidden).unflatten(1, (NETWORKS, HIDDEN)).flatten(1, 2)
    outputs = convolution(second.window.pad(hidden), W2, stride=stride, groups=NETWORKS)
    inducing = _relu(torch.einsum("pc...,khc...->kph", patches, W1))
    mixed = torch.einsum("qp...,kph->kqh...", C, inducing)
    points = torch.einsum("kqh...,kh...->kq", mixed, W2)

    at_images = torch.movedim(outputs, 1, 0)
    found = {
        "ii": points[:, :, None] * points[:, None, :],
        "it": torch.einsum("kn...,kq->knq...", at_images, points),
        "tt": at_images.square(),
    }
    scale = {"ii": expected.ii.max(), "tt": expected.tt.max()}
    scale["it"] = (scale["ii"] * scale["tt"]) ** 0.5
    for name, samples in found.items():
        products = array(samples)
        error = products.std(0) / np.sqrt(NETWORKS)
        scores = (products.mean(0) - getattr(expected, name)) / error
        assert np.abs(scores).max() < 5, name
        assert error.max() < 0.05 * scale[name], name

"""Arc-cosine kernels against the random features they are the limit of."""

import numpy as np
import pytest
import torch

import convdkm as dkm
from oracle.adapter import array
from oracle.cases import generator_of, normal

FEATURES = 400_000


@pytest.mark.parametrize("order", [0, 1, 2])
def test_arc_cosine_is_the_mean_product_of_random_features(order):
    """E[φ(w·x) φ(w·y)] with φ(u) = √2 max(u, 0)ⁿ and w of unit variance."""
    generator = generator_of(f"random features {order}")
    points = normal(generator, 6, 4)
    points[5] = -0.7 * points[0]
    gram = dkm.Gram.from_features(points, points[:, :, None])
    expected = array(dkm.ArcCosine(order)(gram).ii)
    projected = normal(generator, FEATURES, 4) @ points.T / 4**0.5
    powers = (projected > 0).double() * projected**order
    products = 2 * array(powers[:, :, None] * powers[:, None, :])
    error = products.std(0) / np.sqrt(FEATURES)
    scores = (products.mean(0) - expected) / np.where(error > 0, error, 1)
    assert np.abs(scores).max() < 5
    assert error.max() < 0.02 * expected.max()


def test_too_few_features_would_be_noticed():
    """The bound above is tight enough to tell the order-1 kernel from one 1% larger."""
    generator = generator_of("power")
    point = normal(generator, 1, 4)
    own = float(point.square().mean())
    projected = normal(generator, FEATURES, 4) @ point[0] / 2
    products = 2 * torch.relu(projected).square()
    error = float(products.std()) / FEATURES**0.5
    assert abs(float(products.mean()) - own) < 5 * error < abs(1.02 * own - own)

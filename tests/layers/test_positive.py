"""A variance that rounding pushed below what the inducing points explain never turns negative."""

import pytest
import torch

import convdkm as dkm
from convdkm.numerics import cholesky, explained, inverse_of_lower, mix
from convdkm.testing import random_gram


@pytest.fixture
def gram():
    """A Gram whose pixels have half the variance that the inducing points explain."""
    consistent = random_gram(5, (4, 4), dtype=torch.float64, seed=0)
    white = whitened(consistent)
    return dkm.Gram(consistent.ii, consistent.it, 0.5 * explained(white))


def whitened(gram):
    return mix(inverse_of_lower(cholesky(gram.ii, "G_ii")), gram.it)


LAYERS = {
    "gram layer": dkm.GramLayer(5, initial_scale=0.1),
    "centre": dkm.Centre(),
    "average pool": dkm.AveragePool(2),
    "global average pool": dkm.GlobalAveragePool(),
}


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_what_is_left_unexplained_is_clamped_at_zero(name, gram):
    layer = LAYERS[name].train()
    out = layer.initialise(gram)
    torch.testing.assert_close(out.tt, explained(whitened(out)), rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_the_head_too(gram):
    pooled = dkm.Gram(gram.ii, gram.it.flatten(2)[..., 0], gram.tt.flatten(1)[:, 0])
    head = dkm.GPHead(5, 2, parameterisation="whitened")
    variance = head(pooled).variance
    torch.testing.assert_close(variance[:, 0], explained(whitened(pooled)), rtol=1e-9, atol=1e-12)

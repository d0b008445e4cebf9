"""Pooling and the top layers beyond the oracle: limits and relations among them."""

import numpy as np
import pytest
import torch

import convdkm as dkm
import oracle
from oracle.adapter import array
from oracle.cases import BLOCK_NAMES, generator_of, normal, random_gram

SPACES = [(6,), (4, 3), (2, 3, 2)]


def assert_same(one, other, tolerance=1e-12):
    for block in BLOCK_NAMES:
        actual, expected = array(getattr(one, block)), array(getattr(other, block))
        assert oracle.deviation(actual, expected) < tolerance, block


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_window_as_large_as_the_image_is_global_pooling(space):
    gram = random_gram(generator_of("window"), 5, 3, space)
    window = dkm.AveragePool(space, ndim=len(space))(gram)
    collapsed = dkm.Gram(window.ii, window.it.flatten(1), window.tt.flatten())
    assert_same(collapsed, dkm.GlobalAveragePool()(gram))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_window_of_one_place_changes_nothing(space):
    gram = random_gram(generator_of("one"), 5, 3, space)
    assert_same(dkm.AveragePool(1, ndim=len(space))(gram), gram)


def test_pooling_twice_keeps_the_averages():
    """The mean of means is the mean, for the covariance with the inducing points."""
    gram = random_gram(generator_of("twice"), 5, 3, (4, 4))
    twice = dkm.Sequential(dkm.AveragePool(2), dkm.GlobalAveragePool())(gram)
    once = dkm.GlobalAveragePool()(gram)
    assert oracle.deviation(array(twice.it), array(once.it)) < 1e-12
    assert oracle.deviation(array(twice.tt), array(once.tt)) < 1e-12


def test_global_pooling_of_independent_pixels_divides_their_variance():
    """Pixels unrelated to the inducing points and so, as far as is known, to each other."""
    gram = random_gram(generator_of("independent"), 5, 3, (4, 3))
    far = dkm.Gram(gram.ii, torch.zeros_like(gram.it), torch.ones_like(gram.tt))
    assert array(dkm.GlobalAveragePool()(far).tt) == pytest.approx(np.full(3, 1 / 12))


def test_global_pooling_of_equal_pixels_keeps_them():
    """Pixels that the inducing points explain wholly average as features do."""
    features = normal(generator_of("equal"), 5, 5)
    images = normal(generator_of("equal images"), 3, 5, 1, 1).expand(3, 5, 4, 3)
    gram = dkm.Gram.from_features(features, images)
    pooled = dkm.GlobalAveragePool()(gram)
    assert oracle.deviation(array(pooled.tt), array(gram.tt[:, 0, 0])) < 1e-10
    assert oracle.deviation(array(pooled.it), array(gram.it[:, :, 0, 0])) < 1e-12


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_flatten_without_weights_is_flatten_with_identities(space):
    gram = random_gram(generator_of("identity"), 5, 3, space)
    plain, mixing = dkm.Flatten(), dkm.Flatten(5)
    mixing.initialise(gram)
    with torch.no_grad():
        identity = torch.eye(5, dtype=torch.float64).reshape(5, 5, *(1,) * len(space))
        mixing.weight.copy_(identity.expand_as(mixing.weight))
        assert_same(mixing(gram), plain(gram))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_flatten_is_a_convolution_as_large_as_the_image(space):
    """Appendix E.1: D = S, without padding."""
    gram = random_gram(generator_of("large"), 5, 3, space)
    flatten = dkm.Flatten(4)
    conv = dkm.Conv(5, 4, space, padding="valid", ndim=len(space))
    flatten.initialise(gram)
    with torch.no_grad():
        conv.weight.copy_(flatten.weight)
        wide = conv(gram)
        collapsed = dkm.Gram(wide.ii, wide.it.flatten(1), wide.tt.flatten())
        assert_same(flatten(gram), collapsed)


def test_flatten_refuses_images_of_another_size():
    layer = dkm.Flatten(4)
    layer.initialise(random_gram(generator_of("size"), 5, 3, (4, 3)))
    with pytest.raises(dkm.GramError, match="another size"):
        layer(random_gram(generator_of("size"), 5, 3, (3, 4)))


def test_flatten_with_weights_must_be_initialised():
    with pytest.raises(dkm.NotInitialisedError, match="take their shape from the images"):
        dkm.Flatten(4)(random_gram(generator_of("size"), 5, 3, (4, 3)))


def test_pooled_variance_is_never_negative_in_single_precision():
    generator = generator_of("negative")
    inducing = normal(generator, 8, 8)
    images = inducing.T[None, :, :, None].expand(4, 8, 8, 3) * 1e3
    gram = dkm.Gram.from_features(inducing, images.float())
    for layer in (dkm.GlobalAveragePool(), dkm.AveragePool(2)):
        pooled = layer(gram)
        assert (pooled.tt >= 0).all()
        bound = pooled.ii.diagonal().float().reshape(1, -1, *(1,) * len(pooled.space))
        assert (pooled.it.square() <= bound * pooled.tt.unsqueeze(1) * (1 + 1e-4)).all()


def test_skip_connections_that_do_not_fit_say_how_to_mend_them():
    gram = random_gram(generator_of("skip"), 5, 3, (4, 4))
    with pytest.raises(dkm.GramError, match=r"Conv\(5, 6, 1\)"):
        dkm.Skip(dkm.Conv(5, 6, 3))(gram)
    with pytest.raises(dkm.GramError, match="same stride"):
        dkm.Skip(dkm.Conv(5, 5, 3, stride=2))(gram)

"""What normalisers remember of their training batches, and what evaluation makes of it."""

import numpy as np
import pytest
import torch

import convdkm as dkm
import oracle
from oracle.adapter import array, blocks
from oracle.cases import DTYPES, TOLERANCE, generator_of, random_gram

MOMENTUM = 0.3
LAYERS = {
    "Norm, batch": lambda **options: dkm.Norm("batch", "batch", **options),
    "Norm, location": lambda **options: dkm.Norm("batch", "location", **options),
    "Centre": dkm.Centre,
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def _running(layer):
    return layer.running_mean if isinstance(layer, dkm.Centre) else layer.running_variance


def _statistic(name, gram):
    if name == "Centre":  # kept in the coordinates in which G_ii is the identity
        incoming = blocks(gram)
        return np.linalg.solve(np.linalg.cholesky(incoming.ii), oracle.inducing_mean(incoming.it))
    return oracle.data_variance(blocks(gram).tt, name.split(", ")[1])


def _grams(name, count, space=(3, 4), dtype=torch.float64):
    generator = generator_of(name)
    return [random_gram(generator, 5, 3, space, dtype) for _ in range(count)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("space", [(), (5,), (3, 4), (2, 3, 2)])
@each_layer
def test_running_average_follows_its_recursion(name, space, dtype):
    layer = LAYERS[name](momentum=MOMENTUM)
    grams = _grams(name, 5, space, dtype)
    layer.initialise(grams[0])
    statistics = [_statistic(name, gram) for gram in grams]
    for step, gram in enumerate(grams[1:], 1):
        layer(gram)
        expected = oracle.running_average(statistics[0], statistics[1 : step + 1], MOMENTUM)
        assert oracle.deviation(array(_running(layer)), expected) <= TOLERANCE[dtype]
    assert _running(layer).dtype == torch.float64


@each_layer
def test_initialising_again_forgets_what_was_before(name):
    layer = LAYERS[name](momentum=MOMENTUM)
    first, second = _grams(name, 2)
    layer.initialise(first)
    layer(second)
    layer.initialise(second)
    assert oracle.deviation(array(_running(layer)), _statistic(name, second)) < 1e-13


@each_layer
def test_evaluation_changes_nothing(name):
    layer = LAYERS[name]()
    first, second = _grams(name, 2)
    layer.initialise(first)
    before = _running(layer).clone()
    layer.eval()
    layer(second)
    assert torch.equal(_running(layer), before)


@each_layer
def test_in_evaluation_an_image_does_not_depend_on_its_batch(name):
    layer = LAYERS[name]()
    first, second = _grams(name, 2)
    layer.initialise(first)
    layer.eval()
    with torch.no_grad():
        together, alone = layer(second)[1], layer(second[1])
    assert oracle.deviation(array(alone.it), array(together.it)) < 1e-13
    assert oracle.deviation(array(alone.tt), array(together.tt)) < 1e-13


@each_layer
def test_in_training_the_batch_itself_is_used(name):
    layer = LAYERS[name]()
    first, second = _grams(name, 2)
    layer.initialise(first)
    with torch.no_grad():
        outgoing = layer(second)
    if name == "Centre":
        assert abs(oracle.inducing_mean(array(outgoing.it))).max() < 1e-14
    else:
        scheme = name.split(", ")[1]
        variance = oracle.data_variance(array(outgoing.tt), scheme)
        assert abs(variance - 1).max() < 1e-14


@each_layer
def test_statistics_of_the_batch_are_used_in_evaluation_on_request(name):
    layer = LAYERS[name](statistics="batch")
    first, second = _grams(name, 2)
    layer.initialise(first)
    training = layer(second)
    layer.eval()
    before = _running(layer).clone()
    evaluation = layer(second)
    assert torch.equal(training.it, evaluation.it)
    assert torch.equal(training.tt, evaluation.tt)
    assert torch.equal(_running(layer), before)


@each_layer
def test_merged_layers_keep_the_same_statistics(name):
    """A whitening that moved into the layer before does not change what is remembered."""
    first, second = _grams(name, 2)
    alone, inside = LAYERS[name](momentum=MOMENTUM), LAYERS[name](momentum=MOMENTUM)
    gram_layer = dkm.GramLayer(5, initial_scale=2.0)
    gram_layer.initialise(first)
    alone.initialise(gram_layer(first))
    chain = dkm.Sequential(gram_layer, inside)
    inside.initialise(gram_layer(first))
    with torch.no_grad():
        alone(gram_layer(second))
        chain(second)
    assert oracle.deviation(array(_running(inside)), array(_running(alone))) < 1e-13


def test_statistics_survive_a_checkpoint():
    for name, build in LAYERS.items():
        layer = build(momentum=MOMENTUM)
        first, second = _grams(name, 2)
        layer.initialise(first)
        layer(second)
        fresh = build()
        fresh.load_state_dict(layer.state_dict())
        assert torch.equal(_running(fresh), _running(layer))
        assert torch.equal(fresh.eval()(second).it, layer.eval()(second).it)


@pytest.mark.parametrize("name", ["Norm, location", "Centre"])
def test_evaluation_without_statistics_is_an_error(name):
    with pytest.raises(dkm.NotInitialisedError, match="running statistics"):
        LAYERS[name]().eval()(_grams(name, 1)[0])


@pytest.mark.parametrize(
    "scheme", [("none", "none", "local", "none"), ("none", "none", "none", "location")]
)
def test_scales_without_a_shape_are_an_error(scheme):
    with pytest.raises(dkm.NotInitialisedError, match="scales take their shape"):
        dkm.Norm(*scheme)(_grams("scales", 1)[0])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("other", [(4, 3), (1, 4), (3, 1), (6, 8)])
@pytest.mark.parametrize(
    "scheme", [("none", "location", "none", "none"), ("none", "none", "none", "location")]
)
def test_images_of_another_size_are_an_error(scheme, other, training):
    """Also where the shapes would broadcast, which would spoil the statistics silently."""
    layer = dkm.Norm(*scheme)
    layer.initialise(_grams("size", 1)[0])
    layer.train(training)
    with pytest.raises(dkm.GramError, match="another size"):
        layer(_grams("size", 1, other)[0])


@pytest.mark.parametrize(
    "build",
    [
        lambda: dkm.Norm("image"),
        lambda: dkm.Norm("batch", "global"),
        lambda: dkm.Norm(inducing_scale="location"),
        lambda: dkm.Norm(data_scale="local"),
        lambda: dkm.Norm(statistics="none"),
        lambda: dkm.Norm(momentum=0.0),
        lambda: dkm.Centre(momentum=1.5),
        lambda: dkm.Centre(statistics="frozen"),
    ],
)
def test_invalid_options_are_refused(build):
    with pytest.raises(dkm.InvalidInputError):
        build()


def test_zero_variance_gives_zero_not_nan():
    gram = _grams("zero", 1)[0]
    empty = dkm.Gram(gram.ii, 0 * gram.it, 0 * gram.tt)
    for data in ("batch", "image", "location", "local"):
        outgoing = dkm.Norm("local", data)(empty)
        assert torch.equal(outgoing.it, torch.zeros_like(gram.it))
        assert torch.equal(outgoing.tt, torch.zeros_like(gram.tt))

"""The learned Gram matrix: where it starts, its limits, and its parameterisations."""

import math

import numpy as np
import pytest
import torch

import convdkm as dkm
import oracle
from oracle.adapter import array, blocks
from oracle.cases import BLOCK_NAMES, generator_of, perturb, random_gram

POINTS = 5


def _gram(label="gram layer"):
    return random_gram(generator_of(label), POINTS, 3, (3, 4))


def assert_same(one, other, tolerance=1e-12):
    for block in BLOCK_NAMES:
        actual, expected = array(getattr(one, block)), array(getattr(other, block))
        assert oracle.deviation(actual, expected) < tolerance, block


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_starts_at_the_kernel(parameterisation):
    """G = K: the machine starts as an NNGP, at no cost."""
    gram, layer = _gram(), dkm.GramLayer(POINTS, parameterisation=parameterisation)
    assert_same(layer.initialise(gram), gram)
    assert float(layer.plan(gram.ii).kl[""].value.detach()) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
@pytest.mark.parametrize("scale", [0.25, 100.0])
def test_starts_at_a_multiple_of_the_kernel(parameterisation, scale):
    gram = _gram()
    layer = dkm.GramLayer(POINTS, parameterisation=parameterisation, initial_scale=scale)
    outgoing = layer.initialise(gram)
    assert oracle.deviation(array(outgoing.ii), scale * array(gram.ii)) < 1e-12
    assert oracle.deviation(array(outgoing.it), scale * array(gram.it)) < 1e-12
    divergence = 0.5 * POINTS * (scale - 1 - math.log(scale))
    assert float(layer.plan(gram.ii).kl[""].value.detach()) == pytest.approx(divergence, rel=1e-10)


def test_infinite_nu_is_the_identity_without_parameters():
    gram, layer = _gram(), dkm.GramLayer(POINTS, math.inf)
    assert list(layer.parameters()) == []
    outgoing = layer(gram)
    assert all(torch.equal(getattr(outgoing, b), getattr(gram, b)) for b in BLOCK_NAMES)
    assert layer.plan(gram.ii).kl == {}


def test_zero_nu_reports_a_divergence_that_costs_nothing():
    gram, layer = _gram(), dkm.GramLayer(POINTS, 0.0, initial_scale=2.0)
    layer.initialise(gram)
    term = layer.plan(gram.ii).kl[""]
    assert float(term.value) > 0.5
    assert float(term.weighted) == 0.0
    assert not term.weighted.requires_grad


def test_the_two_parameterisations_hold_the_same_matrices():
    gram = _gram()
    direct, white = (dkm.GramLayer(POINTS, parameterisation=p) for p in ("direct", "whitened"))
    direct.initialise(gram)
    white.initialise(gram)
    perturb(white, generator_of("white"))
    with torch.no_grad():
        direct.factor.copy_(torch.linalg.cholesky(gram.ii) @ white.factor.tril())
        assert_same(direct(gram), white(gram))
        values = [layer.plan(gram.ii).kl[""].value for layer in (direct, white)]
    assert float(values[0]) == pytest.approx(float(values[1]), rel=1e-11)


def test_whitened_follows_changes_below_and_direct_does_not():
    gram, other = _gram(), _gram("another")
    direct, white = (dkm.GramLayer(POINTS, parameterisation=p) for p in ("direct", "whitened"))
    for layer in (direct, white):
        layer.initialise(gram)
    with torch.no_grad():
        assert_same(white(other), other)
        assert oracle.deviation(array(direct(other).ii), array(gram.ii)) < 1e-12


def test_the_learned_scale_multiplies_the_matrix():
    gram, layer = _gram(), dkm.GramLayer(POINTS, learn_scale=True)
    layer.initialise(gram)
    with torch.no_grad():
        layer.log_scale.fill_(math.log(3.0))
        assert oracle.deviation(array(layer(gram).ii), 3 * array(gram.ii)) < 1e-12


def test_divergence_is_that_of_the_two_gaussians():
    """Against a Monte-Carlo estimate of E_G[log N(f; 0, G) − log N(f; 0, K)]."""
    gram, layer = _gram(), dkm.GramLayer(POINTS, initial_scale=1.5)
    layer.initialise(gram)
    perturb(layer, generator_of("kl"))
    with torch.no_grad():
        plan = layer.plan(gram.ii)
    generator = np.random.default_rng(0)
    G, K = array(plan.ii), array(gram.ii)
    samples = generator.standard_normal((200_000, POINTS)) @ np.linalg.cholesky(G).T

    def log_density(covariance):
        inverse = np.linalg.inv(covariance)
        quadratic = np.einsum("sp,pq,sq->s", samples, inverse, samples)
        return -0.5 * (quadratic + np.linalg.slogdet(covariance)[1])

    ratios = log_density(G) - log_density(K)
    error = ratios.std() / len(ratios) ** 0.5
    assert abs(ratios.mean() - float(plan.kl[""].value)) < 5 * error
    assert error < 0.02 * ratios.mean()


def test_upper_triangle_of_the_factor_is_ignored():
    gram, layer = _gram(), dkm.GramLayer(POINTS)
    layer.initialise(gram)
    with torch.no_grad():
        before = layer(gram)
        layer.factor.add_(torch.triu(torch.ones(POINTS, POINTS), 1))
        assert_same(layer(gram), before)


def test_pixels_at_inducing_points_get_the_learned_matrix():
    """A pixel whose kernel is that of inducing point i has row i of G, and its variance."""
    kernel = dkm.ArcCosine()
    features = torch.randn(POINTS, 20, dtype=torch.float64)
    gram = kernel(dkm.Gram.from_features(features, features))
    layer = dkm.GramLayer(POINTS)
    layer.initialise(gram)
    perturb(layer, generator_of("pixels"))
    with torch.no_grad():
        outgoing = layer(gram)
    assert oracle.deviation(array(outgoing.it), array(outgoing.ii)) < 1e-9
    assert oracle.deviation(array(outgoing.tt), np.diag(array(outgoing.ii))) < 1e-9


def test_a_pixel_far_from_all_inducing_points_keeps_its_kernel():
    gram = _gram()
    far = dkm.Gram(gram.ii, torch.zeros_like(gram.it), gram.tt)
    layer = dkm.GramLayer(POINTS, initial_scale=50.0)
    outgoing = layer.initialise(far)
    assert torch.equal(outgoing.tt, far.tt)
    assert torch.equal(outgoing.it, far.it)


def test_use_before_initialising_is_an_error():
    with pytest.raises(dkm.NotInitialisedError, match="starts at the kernel"):
        dkm.GramLayer(POINTS)(_gram())
    dkm.GramLayer(POINTS, parameterisation="whitened")(_gram())


def test_a_checkpoint_remembers_that_it_was_initialised():
    gram, layer = _gram(), dkm.GramLayer(POINTS)
    layer.initialise(gram)
    perturb(layer, generator_of("checkpoint"))
    fresh = dkm.GramLayer(POINTS)
    fresh.load_state_dict(layer.state_dict())
    with torch.no_grad():
        assert_same(fresh(gram), layer(gram))


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_inducing": 0},
        {"num_inducing": 2.0},
        {"num_inducing": 4, "nu": -1.0},
        {"num_inducing": 4, "nu": math.nan},
        {"num_inducing": 4, "initial_scale": 0.0},
        {"num_inducing": 4, "parameterisation": "diagonal"},
    ],
)
def test_invalid_options_are_refused(arguments):
    with pytest.raises(dkm.InvalidInputError):
        dkm.GramLayer(**arguments)


def test_singular_kernels_are_named():
    indefinite = torch.diag(torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0], dtype=torch.float64))
    layer = dkm.Sequential({"gram": dkm.GramLayer(POINTS, parameterisation="whitened")})
    with pytest.raises(dkm.NotPositiveDefiniteError, match="in layer 'gram': the kernel matrix"):
        layer.plan(indefinite)
    with pytest.raises(dkm.NotFiniteError, match="NaN"):
        layer.plan(torch.full((POINTS, POINTS), torch.nan, dtype=torch.float64))


def test_explained_variance_is_bounded_by_the_kernel():
    """k_tt − K_ti K_ii⁻¹ K_it is what the inducing points leave; a smaller G cannot go below."""
    gram = _gram()
    layer = dkm.GramLayer(POINTS, initial_scale=1e-8)
    outgoing = layer.initialise(gram)
    K = blocks(gram)
    left = oracle.predict_gram(K, 0 * K.ii).tt
    assert oracle.deviation(array(outgoing.tt), left) < 1e-6


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_a_divided_factor_is_the_same_machine_with_smaller_steps(parameterisation):
    gram = _gram()
    options = {"parameterisation": parameterisation, "initial_scale": 3.0}
    plain = dkm.GramLayer(POINTS, **options)
    divided = dkm.GramLayer(POINTS, **options, divided=True)
    one, other = plain.initialise(gram), divided.initialise(gram)
    for name in ("ii", "it", "tt"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name))
    torch.testing.assert_close(divided.factor, plain.factor * POINTS**0.5)
    gradients = []
    for layer in (plain, divided):
        layer(gram).ii.square().sum().backward()
        gradients.append(layer.factor.grad)
    torch.testing.assert_close(gradients[1] * POINTS**0.5, gradients[0])

"""Kernels against the oracle, and what every kernel must be."""

import math

import numpy as np
import pytest
import torch

import convdkm as dkm
import oracle
from convdkm.kernels.blocks import Scratch, Side
from oracle.adapter import array, blocks, kernel_function
from oracle.cases import DTYPES, GROUPS, KERNELS, TOLERANCE, generator_of, normal, random_gram

TINY = 1e-13
each_kernel = pytest.mark.parametrize("name", KERNELS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", GROUPS["kernels"], ids=str)
def test_blocks_match_the_oracle(case, dtype):
    for block, pair in case.pairs(dtype).items():
        assert oracle.deviation(*pair) <= TOLERANCE[dtype], block


@each_kernel
def test_of_equal_points_is_the_variance(name):
    kernel = KERNELS[name]()
    own = normal(generator_of(name), 50).square()
    with torch.no_grad():
        assert oracle.deviation(array(kernel.of(own, own, own)), array(kernel.variance(own))) < TINY


@each_kernel
def test_written_over_its_input_it_is_the_same(name):
    kernel = KERNELS[name]()
    gram = random_gram(generator_of(name), 6, 1, ())
    own = gram.ii.diagonal()
    sides, scratch = (Side.of(own[:, None]), Side.of(own)), Scratch()
    with torch.no_grad():
        expected = kernel.core(gram.ii, *sides)
        for _ in range(2):
            block = gram.ii.clone()
            found = kernel.core_(block, *sides, scratch)
            assert found is block
            assert oracle.deviation(array(found), array(expected)) < TINY


@each_kernel
def test_is_symmetric(name):
    kernel = KERNELS[name]()
    gram = random_gram(generator_of(name), 6, 1, ())
    own = gram.ii.diagonal()
    with torch.no_grad():
        one = kernel.of(gram.ii, own[:, None], own[None, :])
        other = kernel.of(gram.ii.T, own[None, :], own[:, None])
    assert oracle.deviation(array(one), array(other)) < TINY


@each_kernel
def test_matrix_is_positive_semidefinite(name):
    """On points that lie in few dimensions: some coincide, some are opposite."""
    kernel = KERNELS[name]()
    features = normal(generator_of(name), 30, 3)
    features[10:15] = features[:5]
    features[15:20] = -features[:5]
    with torch.no_grad():
        matrix = kernel(dkm.Gram.from_features(features, features[:, :, None])).ii
    eigenvalues = torch.linalg.eigvalsh(matrix)
    assert eigenvalues.min() > -1e-7 * eigenvalues.max()


@pytest.mark.parametrize("order", [0, 1, 2])
def test_arc_cosine_of_a_zero_point_is_positive_semidefinite(order):
    """Zero patches are real data: the border of a digit, padding."""
    features = torch.tensor([[0.0, 0.0], [1.0, 0.5], [-1.0, -0.5]], dtype=torch.float64)
    matrix = dkm.ArcCosine(order)(dkm.Gram.from_features(features, features[:, :, None])).ii
    assert torch.linalg.eigvalsh(matrix).min() > -1e-12


@pytest.mark.parametrize(
    ("kernel", "angle", "value"),
    [
        (dkm.ArcCosine(0), math.pi / 2, 0.5),
        (dkm.ArcCosine(0), math.pi, 0.0),
        (dkm.ArcCosine(1), 0.0, 1.0),
        (dkm.ArcCosine(1), math.pi / 2, 1 / math.pi),
        (dkm.ArcCosine(1), math.pi, 0.0),
        (dkm.ArcCosine(2), 0.0, 3.0),
        (dkm.ArcCosine(2), math.pi / 2, 0.5),
        (dkm.ArcSine(), math.pi / 2, 0.0),
        (dkm.ArcSine(), 0.0, 2 / math.pi * math.asin(2 / 3)),
        (dkm.ArcSine(), math.pi, -2 / math.pi * math.asin(2 / 3)),
        (dkm.LeakyReLU(), 0.0, 1.0),
        (dkm.LeakyReLU(1.0), math.pi / 3, 0.5),
        (dkm.LeakyReLU(0.0), math.pi / 2, 1 / math.pi),
        (dkm.LeakyReLU(-1.0), math.pi / 2, 2 / math.pi),
        (dkm.LeakyReLU(-1.0), math.pi, 1.0),
        (dkm.Sine(), 0.0, -math.expm1(-2) / 2),
        (dkm.Sine(), math.pi / 2, 0.0),
        (dkm.Sine(2.0, math.pi / 2), math.pi / 2, math.exp(-4)),
        (dkm.Sine(2.0, math.pi / 4), math.pi / 3, math.exp(-2) / 2),
        (dkm.SquaredExponential(), math.pi / 2, math.exp(-1)),
        (dkm.Matern(0.5), math.pi / 2, math.exp(-math.sqrt(2))),
        (dkm.RationalQuadratic(1.0), math.pi / 2, 0.5),
        (dkm.NormalisedGaussian(2.0), math.pi, math.exp(-4)),
        (dkm.NormalisedPolynomial((1, 3)), math.pi, 0.5),
        (dkm.NormalisedPolynomial((1, 3)), math.pi / 3, 5 / 16),
        (dkm.NormalisedPolynomial((0, 0, 2)), math.pi / 3, 1 / 8),
        (dkm.Linear(), math.pi / 3, 0.5),
    ],
)
def test_known_values_at_unit_norm(kernel, angle, value):
    one = torch.ones((), dtype=torch.float64)
    found = kernel.of(torch.tensor(angle, dtype=torch.float64).cos(), one, one)
    assert float(found) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_arc_cosine_is_homogeneous(order):
    gram = random_gram(generator_of("homogeneous"), 5, 3, (4,))
    kernel = dkm.ArcCosine(order)
    scaled, plain = kernel(gram * 7.0), kernel(gram) * 7.0**order
    for block in ("ii", "it", "tt"):
        actual, expected = array(getattr(scaled, block)), array(getattr(plain, block))
        assert oracle.deviation(actual, expected) < TINY


def test_rational_quadratic_tends_to_squared_exponential():
    gram = random_gram(generator_of("limit"), 5, 3, (4,))
    mixture, limit = dkm.RationalQuadratic(1e7, 1.3)(gram), dkm.SquaredExponential(1.3)(gram)
    assert oracle.deviation(array(mixture.it), array(limit.it)) < 1e-6


def test_arithmetic_reads_as_written():
    first, second = dkm.ArcCosine(), dkm.Linear()
    gram = random_gram(generator_of("arithmetic"), 5, 3, (4,))
    one, two = first(gram), second(gram)
    for kernel, expected in (
        (first + second, one.it + two.it),
        (first * second, one.it * two.it),
        (3.0 * first, 3 * one.it),
        (first * 3.0, 3 * one.it),
        (0.25 * first + second * 2, 0.25 * one.it + 2 * two.it),
    ):
        assert oracle.deviation(array(kernel(gram).it), array(expected)) < TINY
    for wrong in (lambda: first + 1.0, lambda: first * "a", lambda: "a" + first):
        with pytest.raises(TypeError):
            wrong()


def test_convex_combination_normalises_its_weights():
    gram = random_gram(generator_of("convex"), 5, 3, (4,))
    parts = (dkm.ArcCosine(), dkm.Linear())
    one, same = (
        dkm.ConvexCombination(*parts, weights=weights)(gram) for weights in ((3, 1), (0.75, 0.25))
    )
    assert oracle.deviation(array(one.it), array(same.it)) < TINY
    even = dkm.ConvexCombination(*parts)(gram)
    expected = 0.5 * parts[0](gram).it + 0.5 * parts[1](gram).it
    assert oracle.deviation(array(even.it), array(expected)) < TINY


@each_kernel
def test_the_three_blocks_are_one_kernel(name):
    """Images that are the inducing points themselves give the same numbers in every block."""
    kernel = KERNELS[name]()
    features = normal(generator_of(name), 5, 20)
    gram = dkm.Gram.from_features(features, features)
    with torch.no_grad():
        kernel_gram = kernel(gram)
    assert oracle.deviation(array(kernel_gram.it), array(kernel_gram.ii)) < 1e-7
    assert oracle.deviation(array(kernel_gram.tt), np.diag(array(kernel_gram.ii))) < TINY


def test_learned_numbers_are_parameters_and_fixed_ones_are_not():
    assert len(list(dkm.ArcCosine().parameters())) == 0
    assert len(list(dkm.ArcCosine(weight_variance=1.0, bias_variance=0.1).parameters())) == 2
    fixed = dkm.ArcCosine(weight_variance=1.0, bias_variance=0.1, learn=False)
    assert len(list(fixed.parameters())) == 0
    assert len(fixed.state_dict()) == 2
    assert len(list(dkm.SquaredExponential().parameters())) == 0
    assert len(list(dkm.RationalQuadratic(learn=True).parameters())) == 3
    assert len(list(dkm.ConvexCombination(dkm.Linear(), learn=True).parameters())) == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: dkm.ArcCosine(3),
        lambda: dkm.ArcCosine(weight_variance=0.0),
        lambda: dkm.ArcCosine(bias_variance=-1.0),
        lambda: dkm.SquaredExponential(0.0),
        lambda: dkm.SquaredExponential(scale=math.inf),
        lambda: dkm.Matern(1.0),
        lambda: dkm.RationalQuadratic(-1.0),
        lambda: dkm.NormalisedGaussian(math.nan),
        lambda: dkm.NormalisedPolynomial(()),
        lambda: dkm.NormalisedPolynomial((0.0, 0.0)),
        lambda: dkm.NormalisedPolynomial((1.0, -0.1)),
        lambda: dkm.NormalisedPolynomial((1.0, math.nan)),
        lambda: dkm.NormalisedPolynomial((1.0, math.inf)),
        lambda: dkm.Scaled(dkm.Linear(), 0.0),
        dkm.Sum,
        lambda: dkm.Product(dkm.Linear(), 2.0),
        lambda: dkm.ConvexCombination(dkm.Linear(), weights=(1.0, 2.0)),
        lambda: dkm.ConvexCombination(dkm.Linear(), weights=(0.0,)),
    ],
)
def test_invalid_options_are_refused(build):
    with pytest.raises(dkm.InvalidInputError):
        build()


def test_a_new_isotropic_kernel_is_one_function():
    class Cauchy(dkm.Isotropic):
        def of_squared_distance(self, r2):
            return 1 / (1 + r2)

    gram = random_gram(generator_of("cauchy"), 5, 3, (4,))
    expected = oracle.apply_kernel(lambda c, a, b: 0.5 / (1 + (a + b - 2 * c) / 4.0), blocks(gram))
    found = Cauchy(2.0, scale=0.5)(gram)
    for block in ("ii", "it", "tt"):
        assert oracle.deviation(array(getattr(found, block)), getattr(expected, block)) < TINY


def test_half_precision_parameters_stay_double():
    kernel = dkm.SquaredExponential(1.3, learn=True).to(torch.bfloat16)
    assert kernel.lengthscale.log_value.dtype == torch.float64
    assert float(kernel_function(kernel)(np.array(0.0), np.array(1.0), np.array(1.0))) > 0

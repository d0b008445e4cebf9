"""Likelihoods: expectations, predictions and what they refuse."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.quasirandom import SobolEngine

import convdkm as dkm
import oracle
from oracle.adapter import array
from oracle.cases import DTYPES, GROUPS, TOLERANCE, generator_of, normal
from oracle.softmax_cases import SOFTMAX_CASES

CLASSES, COUNT = 4, 6


def _marginals(
    outputs=CLASSES, *, shared=True, count=COUNT, dtype=torch.float64, label="marginals"
):
    generator = generator_of(label)
    mean = normal(generator, count, outputs)
    variance = 0.1 + normal(generator, count, 1 if shared else outputs).square()
    return dkm.Marginals(mean.to(dtype), variance.to(dtype))


def _labels(count=COUNT, classes=CLASSES):
    return torch.arange(count) % classes


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", GROUPS["likelihoods"], ids=str)
def test_gaussian_matches_the_oracle(case, dtype):
    for name, pair in case.pairs(dtype).items():
        assert oracle.deviation(*pair) <= TOLERANCE[dtype], name


# -- Gaussian ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_gaussian_closed_form_is_the_mean_over_samples(shared):
    """Against samples drawn here, with the standard error of their mean."""
    marginals = _marginals(3, shared=shared)
    targets = normal(generator_of("targets"), COUNT, 3)
    likelihood = dkm.Gaussian(3, noise=0.4)
    mean, deviation = array(marginals.mean), np.sqrt(array(marginals.variance))
    draws = np.random.default_rng(0).standard_normal((40_000, COUNT, 3))
    samples = stats.norm.logpdf(array(targets), mean + deviation * draws, 0.4**0.5).sum(2)
    found = array(likelihood.expected_log_prob(marginals, targets))
    error = samples.std(0) / len(samples) ** 0.5
    assert np.abs((found - samples.mean(0)) / error).max() < 5
    assert (error < 0.02 * np.abs(found)).all()


@pytest.mark.parametrize("shared", [True, False])
def test_gaussian_monte_carlo_agrees_with_the_closed_form(shared):
    marginals, repeats, samples = _marginals(3, shared=shared), 100, 200
    targets = normal(generator_of("targets"), COUNT, 3)
    exact = dkm.Gaussian(3, noise=0.4).expected_log_prob(marginals, targets)
    likelihood = dkm.Gaussian(3, noise=0.4, expectation="monte-carlo", samples=samples)
    with torch.no_grad():
        runs = array(
            torch.stack([likelihood.expected_log_prob(marginals, targets) for _ in range(repeats)])
        )
    error = runs.std(0) / repeats**0.5
    assert np.abs((runs.mean(0) - array(exact)) / error).max() < 5
    assert (runs.std(0) > 0).all()


def test_gaussian_density_is_that_of_scipy():
    marginals = _marginals(3, shared=False)
    prediction = dkm.Gaussian(3, noise=0.4).predict(marginals)
    targets = normal(generator_of("targets"), COUNT, 3)
    scale = np.sqrt(array(marginals.variance) + 0.4)
    expected = stats.norm.logpdf(array(targets), array(marginals.mean), scale).sum(1)
    assert oracle.deviation(array(prediction.log_prob(targets)), expected) < 1e-13
    entropy = stats.norm.entropy(array(marginals.mean), scale).sum(1)
    assert oracle.deviation(array(prediction.entropy), entropy) < 1e-13
    assert oracle.deviation(array(prediction.target_variance), scale**2) < 1e-14


def test_gaussian_density_integrates_to_one():
    marginals = _marginals(1)
    prediction = dkm.Gaussian(1, noise=0.4).predict(marginals)
    grid = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    with torch.no_grad():
        density = torch.stack([prediction.log_prob(y.expand(COUNT, 1)).exp() for y in grid])
    assert array(density.sum(0) * 0.01) == pytest.approx(np.ones(COUNT), abs=1e-9)


def test_gaussian_predictive_density_averages_the_likelihood():
    """log E[P(y|f)] ≥ E[log P(y|f)], and the former is the mean over samples of f."""
    marginals = _marginals(1)
    targets = normal(generator_of("targets"), COUNT, 1)
    likelihood = dkm.Gaussian(1, noise=0.4)
    log_density = array(likelihood.predict(marginals).log_prob(targets))
    assert (log_density > array(likelihood.expected_log_prob(marginals, targets))).all()
    draws = np.random.default_rng(1).standard_normal((100_000, COUNT))
    functions = array(marginals.mean)[:, 0] + np.sqrt(array(marginals.variance)[:, 0]) * draws
    samples = stats.norm.pdf(array(targets)[:, 0], functions, 0.4**0.5)
    error = samples.std(0) / len(samples) ** 0.5
    assert np.abs((samples.mean(0) - np.exp(log_density)) / error).max() < 5


@pytest.mark.parametrize("shared", [True, False])
def test_gaussian_on_classes_reads_labels_as_one_hot(shared):
    marginals, labels = _marginals(shared=shared), _labels()
    classes, real = dkm.Gaussian(CLASSES, noise=0.4, classes=True), dkm.Gaussian(CLASSES, noise=0.4)
    codes = torch.eye(CLASSES, dtype=torch.float64)[labels]
    targets = classes.check_targets(labels, COUNT)
    assert torch.equal(targets, codes)
    one = classes.expected_log_prob(marginals, targets)
    other = real.expected_log_prob(marginals, codes)
    assert torch.equal(one, other)
    prediction = classes.predict(marginals)
    variance = array(marginals.variance.expand(COUNT, CLASSES))
    expected = oracle.gaussian_class_probabilities(array(marginals.mean), variance, 0.4)
    assert oracle.deviation(array(prediction.probs), expected) < 1e-12
    with pytest.raises(dkm.InvalidInputError, match="Categorical likelihood only"):
        _ = prediction.mutual_information


def test_gaussian_noise_is_learned_only_on_request():
    assert dkm.Gaussian(1, noise=0.4).log_noise.requires_grad
    fixed = dkm.Gaussian(1, noise=0.4, learn_noise=False)
    assert list(fixed.parameters()) == []
    assert "log_noise" in fixed.state_dict()
    assert float(fixed.noise) == pytest.approx(0.4, rel=1e-12)


# -- the integral of the categorical likelihood ------------------------------------------------


def _expectations(mean, variance, dtype=torch.float64, **options):
    """E[log Σ exp f] and the prediction, of one image, through the likelihood."""
    marginals = dkm.Marginals(
        torch.tensor(mean, dtype=dtype)[None], torch.tensor(variance, dtype=dtype)[None]
    )
    likelihood = dkm.Categorical(len(mean), **options)
    value = marginals.mean[0, 0] - likelihood.expected_log_prob(marginals, torch.tensor([0]))
    return array(value.double()), likelihood.predict(marginals)


@pytest.mark.parametrize("case", SOFTMAX_CASES, ids=str)
def test_nodes_are_never_worse_than_as_many_random_samples(case):
    """In E[log Σ exp f] and in the probabilities, for a variance that all classes share."""
    samples = case.errors_of_samples(64, repeats=6)
    value, prediction = _expectations(case.mean, [case.variance])
    error, divergence = case.errors(value, array(prediction.log_probs))
    assert error < min(samples[0], 1e-4)
    assert divergence < max(samples[1], 1e-12)
    assert divergence < 1e-8
    entropy = array(prediction.expected_entropy)[0]
    assert entropy == pytest.approx(case.truth[2], abs=1e-3)
    value, prediction = _expectations(case.mean, [case.variance], torch.float32)
    error, divergence = case.errors(value, array(prediction.log_probs.double()))
    assert error < max(samples[0], 1e-5)
    assert error < 1e-4
    assert divergence < 1e-6


VARIANCES_OF_CLASSES = {
    "narrow and wide": ([0.0, 0.0], [1e-6, 1e3]),
    "the wide one above": ([0.0, 30.0], [1e-6, 1e3]),
    "the wide one far above": ([0.0, 100.0], [1e-6, 1e3]),
    "the narrow one above": ([30.0, 0.0], [1e-6, 1e3]),
    "two of three": ([0.0, 30.0, 30.0], [0.01, 1e3, 1.0]),
    "all sizes": ([0.0, 20.0, 0.0, 7.0, 3.0], [0.01, 100.0, 1000.0, 0.5, 10.0]),
    "like each other": ([0.3, -0.2, 1.0], [0.9, 1.1, 1.3]),
    "thirty": (list(np.linspace(0, 20, 30)), list(np.geomspace(1e3, 1e-6, 30))),
    "thirty, ascending": (list(np.linspace(0, 20, 30)), list(np.geomspace(1e-6, 1e3, 30))),
}


@pytest.mark.parametrize("case", VARIANCES_OF_CLASSES)
def test_classes_may_have_variances_of_their_own(case):
    mean, variance = map(np.array, VARIANCES_OF_CLASSES[case])
    expected, probabilities, entropy = oracle.softmax_expectations(mean, np.sqrt(variance))
    for dtype in DTYPES:
        value, prediction = _expectations(mean, variance, dtype)
        assert value == pytest.approx(expected, abs=1e-4)
        assert array(prediction.probs.double())[0] == pytest.approx(probabilities, abs=1e-5)
        assert array(prediction.expected_entropy)[0] == pytest.approx(entropy, abs=1e-3)
        assert float(prediction.mutual_information) >= 0


def test_the_oracle_of_the_softmax_is_the_mean_over_samples():
    mean, variance = np.array([3.0, 2.0, 1.0, 0.0]), np.array([0.1, 10.0, 1.0, 0.3])
    expected = oracle.softmax_expectations(mean, np.sqrt(variance))
    draws = np.random.default_rng(0).standard_normal((200_000, 4))
    functions = np.exp(mean + np.sqrt(variance) * draws)
    total = functions.sum(1, keepdims=True)
    softmax = functions / total
    entropy = -(softmax * np.log(softmax)).sum(1)
    for samples, truth in zip((np.log(total[:, 0]), softmax, entropy), expected, strict=True):
        error = samples.std(0) / len(samples) ** 0.5
        assert (np.abs(samples.mean(0) - truth) < 4 * error).all()


@pytest.mark.parametrize("shared", [True, False])
def test_derivatives_are_the_true_probabilities_and_their_variances(shared):
    mean = torch.tensor([[2.0, 0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([[4.0]] if shared else [[4.0, 9.0, 0.1]], dtype=torch.float64)
    variance.requires_grad_()
    value = -dkm.Categorical(3).expected_log_prob(dkm.Marginals(mean, variance), _labels(1))
    value.sum().backward()
    widths = np.sqrt(array(variance.detach().expand(1, 3))[0])

    def truth(shift, power):
        widened = np.sqrt(widths**2 + shift * power)
        return oracle.softmax_expectations(array(mean.detach())[0], widened)[0]

    probabilities = oracle.softmax_expectations(array(mean.detach())[0], widths)[1]
    assert array(mean.grad)[0] == pytest.approx(probabilities - np.eye(3)[0], abs=1e-6)
    directions = [np.ones(3)] if shared else list(np.eye(3))
    numerical = [(truth(0.02, d) - truth(-0.02, d)) / 0.04 for d in directions]
    assert array(variance.grad)[0] == pytest.approx(np.array(numerical), abs=1e-4)


def test_classes_that_are_next_to_impossible_have_their_log_probability():
    for variance in (0.0, 1e-6, 1e-2):
        for dtype in DTYPES:
            log_probs = _expectations([0.0, 200.0, 3000.0], [variance], dtype)[1].log_probs
            found = array(log_probs.double())[0]
            assert found == pytest.approx([-3000 + variance, -2800 + variance, 0], rel=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_huge_variances_and_means_give_finite_numbers(dtype):
    for mean, variance in itertools.product([0.0, 1e4, -1e6], [1e6, 1e12]):
        value, prediction = _expectations([mean, 0.0, 1.0], [variance], dtype)
        assert np.isfinite(value).all()
        assert torch.isfinite(prediction.log_probs).all()
        assert 0 <= float(prediction.expected_entropy) <= math.log(3)


def test_numbers_that_are_none_come_out_as_such():
    """Training looks at its objective, and takes the step back."""
    for mean, variance in (([math.nan, 0.0], [1.0]), ([0.0, 0.0], [math.nan])):
        assert np.isnan(_expectations(mean, variance)[0]).all()


@pytest.mark.parametrize("count", [1, 7, 200])
def test_any_number_of_nodes_will_do(count):
    """A few are as good as none, so that more are taken."""
    expected = oracle.softmax_expectations(np.arange(4.0), np.full(4, 2.0))[0]
    assert _expectations(np.arange(4.0), [4.0], samples=count)[0] == pytest.approx(expected, 1e-5)


def test_nodes_leave_the_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    dkm.Categorical(CLASSES).predict(_marginals())
    assert torch.equal(torch.get_rng_state(), before)


def test_states_with_nodes_of_before_are_taken():
    likelihood = dkm.Categorical(CLASSES)
    model = torch.nn.ModuleDict({"likelihood": likelihood})
    assert not model.state_dict()
    model.load_state_dict({"likelihood.nodes": torch.zeros(64, CLASSES)})
    with pytest.raises(RuntimeError, match="Unexpected"):
        model.load_state_dict({"likelihood.others": torch.zeros(64, CLASSES)})


def test_no_images_have_no_expectations():
    likelihood = dkm.Categorical(CLASSES)
    none = dkm.Marginals(torch.zeros(0, CLASSES), torch.zeros(0, 1))
    assert likelihood.expected_log_prob(none, _labels(0)).shape == (0,)
    assert likelihood.predict(none).probs.shape == (0, CLASSES)


@pytest.fixture(scope="module")
def long_run():
    """16384 points of a mirrored Sobol sequence, other than that of the nodes."""
    half = SobolEngine(10, scramble=True, seed=99).draw(2**13, dtype=torch.float64)
    half = torch.special.ndtri(half.clamp(1e-12, 1 - 1e-12))
    return torch.cat([half, -half])


@pytest.mark.parametrize("variance", [0.01, 0.1, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0, 2.0, 5.0])
def test_64_nodes_are_better_than_1000_random_samples(spread, variance, long_run):
    """In the expectation of log-sum-exp over 10 classes, root mean square over images."""
    count = 12
    mean = spread * normal(generator_of(f"{spread} {variance}"), count, 10)
    every = torch.logsumexp(mean[:, None] + variance**0.5 * long_run, 2)
    truth = every.mean(1)
    of_samples = (every.var(1) / 1000).mean().sqrt()
    marginals = dkm.Marginals(mean, torch.full((count, 1), variance, dtype=torch.float64))
    labels = torch.zeros(count, dtype=torch.long)
    found = mean[:, 0] - dkm.Categorical(10).expected_log_prob(marginals, labels)
    of_nodes = (found - truth).square().mean().sqrt()
    assert 0 < of_nodes <= of_samples


# -- categorical -------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_categorical_without_variance_is_the_softmax(shared):
    marginals = _marginals(shared=shared)
    certain = dkm.Marginals(marginals.mean, torch.zeros_like(marginals.variance))
    likelihood, labels = dkm.Categorical(CLASSES), _labels()
    log_softmax = torch.log_softmax(marginals.mean, 1)
    found = likelihood.expected_log_prob(certain, labels)
    expected = log_softmax.gather(1, labels[:, None])[:, 0]
    assert oracle.deviation(array(found), array(expected)) < 1e-13
    prediction = likelihood.predict(certain)
    assert oracle.deviation(array(prediction.probs), array(log_softmax.exp())) < 1e-13
    assert array(prediction.mutual_information) == pytest.approx(np.zeros(COUNT), abs=1e-12)


@pytest.mark.parametrize("shared", [True, False])
def test_categorical_monte_carlo_agrees_with_the_nodes(shared):
    marginals, labels, repeats = _marginals(shared=shared), _labels(), 60
    nodes = dkm.Categorical(CLASSES, samples=4096)
    random = dkm.Categorical(CLASSES, expectation="monte-carlo")
    with torch.no_grad():
        runs = [random.expected_log_prob(marginals, labels) for _ in range(repeats)]
        probabilities = [random.predict(marginals).probs for _ in range(repeats)]
        fixed = nodes.expected_log_prob(marginals, labels), nodes.predict(marginals).probs
    for found, expected in zip((runs, probabilities), fixed, strict=True):
        draws = array(torch.stack(found))
        error = draws.std(0) / repeats**0.5
        assert (error > 0).all()
        assert np.abs((draws.mean(0) - array(expected)) / error).max() < 5
        assert error.max() < 0.01


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "likelihood",
    [
        dkm.Categorical(CLASSES),
        dkm.Categorical(CLASSES, expectation="monte-carlo", samples=50),
        dkm.Gaussian(CLASSES, classes=True),
    ],
    ids=["nodes", "monte-carlo", "Gaussian"],
)
def test_probabilities_are_probabilities(likelihood, dtype):
    prediction = likelihood.predict(_marginals(dtype=dtype))
    probabilities = array(prediction.probs)
    tolerance = 10 * torch.finfo(dtype).eps
    assert probabilities.sum(1) == pytest.approx(np.ones(COUNT), abs=tolerance)
    assert (probabilities > 0).all()
    assert prediction.probs.dtype == dtype
    assert prediction.labels.tolist() == probabilities.argmax(1).tolist()


def test_nodes_are_deterministic_and_treat_every_image_alone():
    marginals, labels = _marginals(), _labels()
    likelihood = dkm.Categorical(CLASSES)
    whole, again = likelihood.predict(marginals), likelihood.predict(marginals)
    assert torch.equal(whole.log_probs, again.log_probs)
    expected = likelihood.expected_log_prob(marginals, labels)
    for image in range(COUNT):
        part = slice(image, image + 1)
        alone = dkm.Marginals(marginals.mean[part], marginals.variance[part])
        prediction = likelihood.predict(alone)
        assert oracle.deviation(array(prediction.log_probs), array(whole.log_probs[part])) < 1e-14
        value = likelihood.expected_log_prob(alone, labels[part])
        assert oracle.deviation(array(value), array(expected[part])) < 1e-14


def test_monte_carlo_draws_afresh():
    marginals, labels = _marginals(), _labels()
    likelihood = dkm.Categorical(CLASSES, expectation="monte-carlo")
    first, second = (likelihood.expected_log_prob(marginals, labels) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("shared", [True, False])
def test_entropy_and_mutual_information_are_their_sums(shared):
    marginals = _marginals(shared=shared)
    likelihood = dkm.Categorical(CLASSES, expectation="monte-carlo", samples=64)
    torch.manual_seed(3)
    prediction = likelihood.predict(marginals)
    torch.manual_seed(3)
    values = array(likelihood.functions(marginals))
    assert values.shape == (COUNT, 64, CLASSES)
    for image in range(COUNT):
        softmax = [np.exp(f) / np.exp(f).sum() for f in values[image]]
        mixed = sum(softmax) / 64
        inner = sum(-(p * np.log(p)).sum() for p in softmax) / 64
        outer = -(mixed * np.log(mixed)).sum()
        assert array(prediction.probs[image]) == pytest.approx(mixed, rel=1e-12)
        assert float(prediction.entropy[image]) == pytest.approx(outer, rel=1e-12)
        assert float(prediction.expected_entropy[image]) == pytest.approx(inner, rel=1e-12)
        information = float(prediction.mutual_information[image])
        assert information == pytest.approx(outer - inner, rel=1e-9)
        assert 0 < information < outer <= math.log(CLASSES)


def test_log_prob_and_accuracy_of_a_prediction():
    prediction, labels = dkm.Categorical(CLASSES).predict(_marginals()), _labels()
    expected = [float(prediction.log_probs[k, label]) for k, label in enumerate(labels)]
    assert array(prediction.log_prob(labels)) == pytest.approx(np.array(expected))
    hits = [int(prediction.log_probs[k].argmax()) == int(label) for k, label in enumerate(labels)]
    assert float(prediction.accuracy(labels)) == pytest.approx(sum(hits) / COUNT)


def test_more_variance_costs_log_likelihood():
    """Log-sum-exp is convex, so its expectation grows with the variance."""
    mean = _marginals().mean
    likelihood, labels = dkm.Categorical(CLASSES), _labels()
    values = [
        likelihood.expected_log_prob(
            dkm.Marginals(mean, torch.full((COUNT, 1), v, dtype=torch.float64)), labels
        )
        for v in (0.0, 0.5, 1.0, 2.0)
    ]
    for less, more in itertools.pairwise(values):
        assert (more < less).all()


# -- derivatives -------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "likelihood", [dkm.Categorical(3), dkm.Gaussian(3, noise=0.4)], ids=["Categorical", "Gaussian"]
)
def test_derivatives_of_the_expectation(likelihood, shared):
    marginals = _marginals(3, shared=shared, count=3)
    categorical = isinstance(likelihood, dkm.Categorical)
    targets = _labels(3, 3) if categorical else normal(generator_of("targets"), 3, 3)

    def evaluate(mean, variance):
        return likelihood.expected_log_prob(dkm.Marginals(mean, variance), targets)

    inputs = [t.clone().requires_grad_() for t in (marginals.mean, marginals.variance)]
    assert torch.autograd.gradcheck(evaluate, inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "likelihood",
    [
        dkm.Categorical(CLASSES),
        dkm.Categorical(CLASSES, expectation="monte-carlo", samples=20),
        dkm.Gaussian(CLASSES, classes=True),
        dkm.Gaussian(CLASSES, classes=True, expectation="monte-carlo", samples=20),
    ],
    ids=["nodes", "monte-carlo", "Gaussian", "Gaussian monte-carlo"],
)
def test_derivatives_without_variance_are_finite(likelihood, dtype):
    """An image that is zero has no variance at all."""
    mean = _marginals(dtype=dtype).mean.requires_grad_()
    variance = torch.zeros(COUNT, 1, dtype=dtype, requires_grad=True)
    targets = likelihood.check_targets(_labels(), COUNT)
    likelihood.expected_log_prob(dkm.Marginals(mean, variance), targets).sum().backward()
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(variance.grad).all()


# -- validation --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(COUNT, dtype=np.int64), "must be a torch.Tensor"),
        (torch.zeros(COUNT), "must be integers"),
        (torch.zeros(COUNT, dtype=torch.bool), "must be integers"),
        (torch.zeros(COUNT, CLASSES, dtype=torch.long), rf"shape \({COUNT},\)"),
        (torch.zeros(COUNT + 1, dtype=torch.long), rf"{COUNT} images need labels"),
        (torch.full((COUNT,), CLASSES), f"between 0 and {CLASSES - 1}"),
        (torch.full((COUNT,), -1), "range from -1 to -1"),
    ],
)
@pytest.mark.parametrize(
    "likelihood",
    [dkm.Categorical(CLASSES), dkm.Gaussian(CLASSES, classes=True)],
    ids=["Categorical", "Gaussian"],
)
def test_labels_are_checked(likelihood, labels, message):
    with pytest.raises(dkm.InvalidInputError, match=message):
        likelihood.check_targets(labels, COUNT)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_labels_of_any_integer_dtype_are_taken(dtype):
    labels = dkm.Categorical(CLASSES).check_targets(_labels().to(dtype), COUNT)
    assert labels.dtype == torch.int64
    assert labels.tolist() == _labels().tolist()


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.zeros((COUNT, 3)), "must be a torch.Tensor"),
        (torch.zeros(COUNT, 3, dtype=torch.long), "must be floating-point"),
        (torch.zeros(COUNT, 2), rf"shape \({COUNT}, 3\)"),
        (torch.zeros(COUNT), rf"shape \({COUNT}, 3\)"),
        (torch.full((COUNT, 3), torch.nan), "NaN or infinite"),
        (torch.full((COUNT, 3), torch.inf), "NaN or infinite"),
    ],
)
def test_real_targets_are_checked(targets, message):
    with pytest.raises(dkm.InvalidInputError, match=message):
        dkm.Gaussian(3).check_targets(targets, COUNT)


def test_one_real_target_may_be_a_vector():
    assert dkm.Gaussian(1).check_targets(torch.zeros(COUNT), COUNT).shape == (COUNT, 1)


@pytest.mark.parametrize(
    "build",
    [
        lambda: dkm.Categorical(1),
        lambda: dkm.Categorical(3, expectation="exact"),
        lambda: dkm.Categorical(3, samples=0),
        lambda: dkm.Categorical(3, expectation="monte-carlo", samples=0),
        lambda: dkm.Gaussian(0),
        lambda: dkm.Gaussian(1, noise=0.0),
        lambda: dkm.Gaussian(1, noise=math.inf),
        lambda: dkm.Gaussian(1, samples=0),
        lambda: dkm.Gaussian(1, expectation="nodes"),
    ],
)
def test_invalid_options_are_refused(build):
    with pytest.raises(dkm.InvalidInputError):
        build()


def test_predictions_check_their_targets():
    prediction = dkm.Categorical(CLASSES).predict(_marginals())
    for wrong in (_labels(COUNT + 1), _labels().double(), torch.full((COUNT,), CLASSES)):
        with pytest.raises(dkm.InvalidInputError):
            prediction.log_prob(wrong)
    with pytest.raises(dkm.InvalidInputError, match=f"{COUNT} predictions, but 2 targets"):
        dkm.Gaussian(1).predict(_marginals(1)).log_prob(torch.zeros(2, 1))

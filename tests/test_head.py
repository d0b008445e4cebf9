"""The sparse Gaussian process at the top."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

import convdkm as dkm
import oracle
from oracle.adapter import array, blocks, head_posterior
from oracle.cases import DTYPES, GROUPS, TOLERANCE, generator_of, normal, perturb, random_gram

POINTS, OUTPUTS = 5, 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", GROUPS["head"], ids=str)
def test_marginals_and_divergence_match_the_oracle(case, dtype):
    for name, pair in case.pairs(dtype).items():
        assert oracle.deviation(*pair) <= TOLERANCE[dtype], name


def _gram(label="head"):
    return random_gram(generator_of(label), POINTS, 4, ())


@pytest.mark.parametrize("covariance", ["shared", "per-output"])
def test_whitened_starts_at_the_prior(covariance):
    gram = _gram()
    head = dkm.GPHead(POINTS, OUTPUTS, covariance=covariance, parameterisation="whitened")
    with torch.no_grad():
        plan, marginals = head.plan(gram.ii), head(gram)
    assert torch.equal(marginals.mean, torch.zeros(4, OUTPUTS, dtype=torch.float64))
    prior = array(gram.tt)[:, None].repeat(marginals.variance.shape[1], 1)
    assert oracle.deviation(array(marginals.variance), prior) < 1e-12
    assert array(plan.kl) == pytest.approx(np.zeros(OUTPUTS), abs=1e-12)


def test_direct_starts_at_random():
    head = dkm.GPHead(40, 50)
    mean, factor = head.mean.detach(), head.factor.detach() / head.divisor
    assert float(mean.var()) == pytest.approx(1, abs=0.1)
    assert float((factor @ factor.T).diagonal().mean()) == pytest.approx(1, abs=0.15)
    head.draw(torch.Generator().manual_seed(3))
    first = head.mean.detach().clone()
    head.draw(torch.Generator().manual_seed(3))
    assert torch.equal(head.mean, first)
    head.draw(torch.Generator().manual_seed(4))
    assert not torch.equal(head.mean, first)


@pytest.mark.parametrize("covariance", ["shared", "per-output"])
def test_the_two_parameterisations_hold_the_same_posterior(covariance):
    gram = _gram()
    options = {"covariance": covariance}
    direct = dkm.GPHead(POINTS, OUTPUTS, parameterisation="direct", **options)
    white = dkm.GPHead(POINTS, OUTPUTS, parameterisation="whitened", **options)
    perturb(white, generator_of("white"))
    lower = torch.linalg.cholesky(gram.ii)
    with torch.no_grad():
        direct.mean.copy_(white.mean @ lower.T)
        direct.factor.copy_(lower @ white.factor * direct.divisor)
        one, other = direct(gram), white(gram)
        assert oracle.deviation(array(one.mean), array(other.mean)) < 1e-11
        assert oracle.deviation(array(one.variance), array(other.variance)) < 1e-11
        kls = [array(head.plan(gram.ii).kl) for head in (direct, white)]
    assert oracle.deviation(*kls) < 1e-11


@pytest.mark.parametrize("covariance", ["shared", "per-output"])
def test_at_the_inducing_points_the_posterior_is_q(covariance):
    features = normal(generator_of("inducing"), POINTS, 20)
    gram = dkm.Gram.from_features(features, features)
    head = dkm.GPHead(POINTS, OUTPUTS, covariance=covariance)
    with torch.no_grad():
        marginals = head(gram)
    mu, A = head_posterior(head, array(gram.ii))
    columns = marginals.variance.shape[1]
    assert oracle.deviation(array(marginals.mean), mu.T) < 1e-10
    own = np.stack([np.diag(a) for a in A], 1)[:, :columns]
    assert oracle.deviation(array(marginals.variance), own) < 1e-9


def test_far_from_the_inducing_points_the_posterior_is_the_prior():
    gram = _gram()
    far = dkm.Gram(gram.ii, torch.zeros_like(gram.it), gram.tt)
    marginals = dkm.GPHead(POINTS, OUTPUTS)(far)
    assert torch.equal(marginals.mean, torch.zeros_like(marginals.mean))
    assert torch.equal(marginals.variance[:, 0], gram.tt)


def test_with_inducing_points_at_the_data_the_bound_is_the_evidence():
    """The best Q gives the exact posterior, and the objective is log N(y; 0, K + σ²I)."""
    count, noise = 6, 0.3
    generator = generator_of("evidence")
    inputs, targets = normal(generator, count, 4), normal(generator, count, 1)
    model = dkm.DeepKernelMachine(
        dkm.VectorInput(4, count),
        dkm.SquaredExponential(0.7),
        dkm.GPHead(count, 1),
        dkm.Gaussian(1, noise=noise),
        dtype=torch.float64,
    )
    model.initialise(inputs, seed=0)
    with torch.no_grad():
        model.input.inducing.copy_(inputs)
        K = model.gram(inputs).ii
        gain = K @ torch.linalg.inv(K + noise * torch.eye(count))
        posterior = K - gain @ K
        model.head.mean.copy_((gain @ targets).T)
        root = torch.linalg.cholesky(posterior + 1e-14 * torch.eye(count))
        model.head.factor.copy_(root * model.head.divisor)
        found = float(model.objective(inputs, targets, num_data=count).total) * count
        marginals = model.marginals(inputs)
    evidence = multivariate_normal.logpdf(
        array(targets)[:, 0], np.zeros(count), array(K) + noise * np.eye(count)
    )
    assert found == pytest.approx(float(evidence), rel=1e-9)
    assert oracle.deviation(array(marginals.variance[:, 0]), np.diag(array(posterior))) < 1e-9


def test_any_other_posterior_gives_a_smaller_bound():
    """So says Jensen: the objective never exceeds the evidence."""
    count, noise = 6, 0.3
    generator = generator_of("Jensen")
    inputs, targets = normal(generator, count, 4), normal(generator, count, 1)
    model = dkm.DeepKernelMachine(
        dkm.VectorInput(4, 4),
        dkm.SquaredExponential(0.7),
        dkm.GPHead(4, 1, parameterisation="whitened"),
        dkm.Gaussian(1, noise=noise),
        dtype=torch.float64,
    )
    model.initialise(inputs, seed=0)
    exact = dkm.VectorInput(4, count)
    exact.initialise(inputs)
    with torch.no_grad():
        exact.inducing.copy_(inputs)
        K = array(model.body(exact(inputs)).ii)
    evidence = multivariate_normal.logpdf(
        array(targets)[:, 0], np.zeros(count), K + noise * np.eye(count)
    )
    for attempt in range(20):
        model.head.draw()
        perturb(model.head, generator_of(f"attempt {attempt}"), 0.3)
        assert (
            count * float(model.objective(inputs, targets, num_data=count).total.detach())
            < evidence
        )


@pytest.mark.parametrize("covariance", ["shared", "per-output"])
def test_variance_is_never_negative_in_single_precision(covariance):
    generator = generator_of("negative")
    features = 100 * normal(generator, POINTS, POINTS)
    gram = dkm.Gram.from_features(features, features.float())
    head = dkm.GPHead(POINTS, OUTPUTS, covariance=covariance)
    with torch.no_grad():
        head.factor.mul_(1e-6)
        variance = head(gram).variance
    assert (variance >= 0).all()


def test_shared_covariance_gives_one_variance_an_image():
    gram = _gram()
    assert dkm.GPHead(POINTS, OUTPUTS)(gram).variance.shape == (4, 1)
    per_output = dkm.GPHead(POINTS, OUTPUTS, covariance="per-output")
    assert per_output(gram).variance.shape == (4, OUTPUTS)
    assert per_output(gram).num_outputs == OUTPUTS


def test_divergence_is_never_negative():
    K = blocks(_gram()).ii
    for seed in range(20):
        head = dkm.GPHead(POINTS, OUTPUTS, covariance="per-output")
        head.draw(torch.Generator().manual_seed(seed))
        with torch.no_grad():
            assert (head.plan(torch.from_numpy(K)).kl > 0).all()


def test_images_with_space_left_are_refused():
    gram = random_gram(generator_of("space"), POINTS, 3, (4, 4))
    with pytest.raises(dkm.GramError, match=r"places \(4, 4\); put GlobalAveragePool"):
        dkm.GPHead(POINTS, OUTPUTS)(gram)


def test_other_numbers_of_inducing_points_are_refused():
    with pytest.raises(dkm.GramError, match="6 inducing points, got one with 5"):
        dkm.GPHead(POINTS + 1, OUTPUTS)(_gram())


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((0, 3), {}),
        ((3, 0), {}),
        ((3, 3), {"covariance": "diagonal"}),
        ((3, 3), {"parameterisation": "natural"}),
    ],
)
def test_invalid_options_are_refused(arguments, options):
    with pytest.raises(dkm.InvalidInputError):
        dkm.GPHead(*arguments, **options)


def test_parameters_stay_double():
    head = dkm.GPHead(POINTS, OUTPUTS).to(torch.float32).half()
    assert {p.dtype for p in head.parameters()} == {torch.float64}


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_a_gaussian_likelihood_is_conditioned_exactly(parameterisation):
    gram, noise = random_gram(generator_of("condition"), POINTS, 30, ()), 0.3
    targets = normal(generator_of("targets"), 30, OUTPUTS)
    head = dkm.GPHead(POINTS, OUTPUTS, parameterisation=parameterisation)

    def expected(marginals):
        error = (targets - marginals.mean).square() + marginals.variance
        return -error.sum(1) / (2 * noise)

    head.condition(gram, expected, steps=60)
    k, k_it = array(gram.ii), array(gram.it)
    inner = np.linalg.inv(k + k_it.T @ k_it / noise)  # Titsias (2009), Eq. 10
    mean, covariance = k @ inner @ k_it.T @ array(targets) / noise, k @ inner @ k
    found = head_posterior(head, k)
    assert oracle.deviation(found[0], mean.T) < 1e-10
    assert oracle.deviation(found[1], np.stack([covariance] * OUTPUTS)) < 1e-10


def test_without_steps_conditioning_leaves_the_prior():
    gram = _gram()
    for parameterisation in ("direct", "whitened"):
        head = dkm.GPHead(
            POINTS, OUTPUTS, covariance="per-output", parameterisation=parameterisation
        )
        head.condition(gram, lambda marginals: marginals.mean.sum(1), steps=0)
        with torch.no_grad():
            assert array(head.plan(gram.ii).kl) == pytest.approx(np.zeros(OUTPUTS), abs=1e-12)


def test_conditioning_is_stationary_for_classes():
    gram = random_gram(generator_of("classes"), POINTS, 40, ())
    labels = torch.arange(40) % OUTPUTS
    head, likelihood = dkm.GPHead(POINTS, OUTPUTS), dkm.Categorical(OUTPUTS)
    head.condition(gram, lambda each: likelihood.expected_log_prob(each, labels), steps=100)
    plan = head.plan(gram.ii)
    bound = likelihood.expected_log_prob(plan.marginals(gram.it, gram.tt), labels).sum()
    (bound - plan.kl.expand(OUTPUTS).sum()).backward()
    assert head.mean.grad.abs().max() < 1e-6
    assert head.factor.grad.abs().max() < 1e-6

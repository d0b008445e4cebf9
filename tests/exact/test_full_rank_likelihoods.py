"""Full-rank machines with likelihoods that are not integrated out, and with classes as vectors."""

import pytest
import torch

import convdkm as dkm
from convdkm.exact import ExactKernel, FullRankDKM, GPRegression, fully_connected_body

INFINITY = float("inf")


def data(points=10, new=6):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(points + new, 3, dtype=torch.float64, generator=generator)
    labels = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1)
    return x[:points], labels[:points], x[points:]


def classifier(nu=1.0, **options):
    x, labels, _ = data()
    return FullRankDKM.from_data(x, labels, likelihood=dkm.Categorical(3), nu=nu, **options)


def test_training_points_as_inducing_points_give_the_full_rank_machine():
    x, labels, new = data()
    exact = classifier(nu=0.5)
    history = exact.fit(8)
    assert history[-1].regulariser.item() > 0.1
    sparse = dkm.fully_connected(
        *(3, 3, 10, 2),
        nu=0.5,
        likelihood=dkm.Categorical(3),
        gram_parameterisation="direct",
        head_parameterisation="whitened",
        dtype=torch.float64,
    ).initialise(x, labels, seed=0)
    with torch.no_grad():
        sparse.input.inducing.copy_(x)
    sparse.body.load_state_dict(exact.body.state_dict())
    sparse.head.load_state_dict(exact.head.state_dict())
    value, expected = sparse.objective(x, labels, num_data=len(x)), exact.objective()
    torch.testing.assert_close(10 * value.total, expected.total, rtol=1e-7, atol=0)
    assert list(value.kl) == list(expected.kl)
    approximate, truth = sparse.predict(new), exact.predict(new)
    assert isinstance(truth, dkm.ClassPrediction)
    torch.testing.assert_close(approximate.mean, truth.mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(approximate.log_probs, truth.log_probs, rtol=1e-6, atol=1e-7)


def test_natural_steps_find_the_optimum_of_lbfgs():
    machine, other = classifier(nu=2.0), classifier(nu=2.0, parameterisation="whitened")
    history = machine.fit()
    totals = torch.stack([value.total for value in history])
    assert bool((totals.diff() > 0).all())
    best = other.fit(500, method="lbfgs", tolerance=1e-9)[-1].total.item()
    assert totals[-1].item() == pytest.approx(best, abs=1e-5)
    assert int((totals > best - 1e-5).nonzero()[0]) <= 20


def test_it_learns_classes():
    x, labels, _ = data()
    machine = classifier(nu=0.2)
    before = machine.predict(x).log_probs.gather(1, labels[:, None]).mean().item()
    history = machine.fit(30)
    after = machine.predict(x).log_probs.gather(1, labels[:, None]).mean().item()
    assert before == pytest.approx(-1.0986, abs=0.2)
    assert after > before + 0.4
    kernel_alone = classifier(nu=INFINITY).fit(30)
    assert history[-1].total.item() > kernel_alone[-1].total.item() + 0.1


class Variational(dkm.Gaussian):
    """Gaussian noise that nobody knows the closed form of."""

    def expected_log_prob(self, marginals, targets):
        return super().expected_log_prob(marginals, targets)


@pytest.mark.parametrize("nu", [INFINITY, 3.0])
def test_the_best_posterior_for_gaussian_noise_is_that_of_the_closed_form(nu):
    x, _, new = data()
    y = torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2]], 1)
    exact = FullRankDKM.from_data(x, y, likelihood=dkm.Gaussian(2, noise=0.2), nu=nu)
    bound = FullRankDKM.from_data(x, y, likelihood=Variational(2, noise=0.2), nu=nu)
    for machine in (exact, bound):
        machine.likelihood.log_noise.requires_grad_(False)
    assert exact.is_conjugate
    assert not bound.is_conjugate
    assert bound.objective().total.item() < exact.objective().total.item() - 1
    best, found = exact.fit()[-1].total.item(), bound.fit()[-1].total.item()
    assert found == pytest.approx(best, abs=1e-6)
    for block in ("mean", "variance"):
        one, two = (getattr(machine.predict(new), block) for machine in (exact, bound))
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-3)


def test_classes_as_vectors_are_integrated_out():
    x, labels, new = data()
    likelihood = dkm.Gaussian(3, classes=True, noise=0.3, learn_noise=False)
    machine = FullRankDKM.from_data(x, labels, likelihood=likelihood, nu=INFINITY, depth=1)
    kernel = ExactKernel(dkm.ArcCosine(), dkm.ArcCosine())
    codes = torch.nn.functional.one_hot(labels, 3).double()
    regression = GPRegression(kernel(x), codes, 0.3)
    torch.testing.assert_close(machine.objective().total, regression.log_marginal_likelihood)
    prediction = machine.predict(new)
    assert isinstance(prediction, dkm.ClassPrediction)
    expected = regression.predict(kernel(new, x), kernel.variance(new))
    torch.testing.assert_close(prediction.mean, expected.mean)
    torch.testing.assert_close(prediction.log_probs.exp().sum(1), torch.ones(6).double())


def test_state_dict_round_trip():
    _, labels, new = data()
    machine = classifier()
    machine.fit(2)
    other = FullRankDKM((10, 3), fully_connected_body(), dkm.Categorical(3))
    other.load_state_dict(machine.state_dict())
    assert torch.equal(other.targets, labels)
    assert torch.equal(other.predict(new).log_probs, machine.predict(new).log_probs)
    assert torch.equal(other.objective().total, machine.objective().total)


def test_random_samples_need_adam():
    x, labels, _ = data()
    likelihood = dkm.Categorical(3, expectation="monte-carlo", samples=20)
    machine = FullRankDKM.from_data(x, labels, likelihood=likelihood)
    for method in ("natural", "lbfgs"):
        with pytest.raises(dkm.InvalidInputError, match="use expectation='nodes', or"):
            machine.fit(method=method)
    assert len(machine.fit(2, method="adam")) == 3


def test_errors():
    x, labels, _ = data()
    with pytest.raises(dkm.InvalidInputError, match="labels must lie between 0 and 1"):
        FullRankDKM.from_data(x, labels, likelihood=dkm.Categorical(2))
    with pytest.raises(dkm.InvalidInputError, match=r"use Categorical\(...\)"):
        FullRankDKM.from_data(x, labels)
    with pytest.raises(dkm.InvalidInputError, match="noise cannot be given together with Cat"):
        FullRankDKM.from_data(x, labels, likelihood=dkm.Categorical(3), noise=0.1)
    with pytest.raises(dkm.InvalidInputError, match="depth, nu cannot be given together with Seq"):
        FullRankDKM.from_data(x, x, body=fully_connected_body(), depth=1, nu=2.0)

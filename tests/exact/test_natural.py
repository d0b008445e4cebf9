"""Natural steps: the optimum that is known, that of L-BFGS, and what they promise on the way."""

import pytest
import torch
from torch import nn

import convdkm as dkm
from convdkm.exact import FullRankDKM, GPRegression
from convdkm.exact.natural import Coordinates, FactorCoordinates, newton_steps
from convdkm.numerics import gaussian_kl


def data(points, features=4, outputs=2):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(points, features, dtype=torch.float64, generator=generator)
    columns = [x[:, i % 4].sin() + x[:, (i + 1) % 4] * x[:, (i + 2) % 4] for i in range(outputs)]
    y = torch.stack(columns, 1)
    return x, y + 0.1 * torch.randn(y.shape, dtype=torch.float64, generator=generator)


def totals(history):
    return torch.stack([value.total for value in history])


def power(matrix, exponent):
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values**exponent @ vectors.T


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_linear_kernels_have_a_closed_form(depth, parameterisation):
    r"""G^ℓ = G⁰((G⁰)⁻¹YYᵀ/ν)^{ℓ/(L+1)}, with as many outputs as ν says and hardly any noise."""
    x, y = data(6, features=9, outputs=12)
    y = y + torch.randn(y.shape, dtype=torch.float64)
    machine = FullRankDKM.from_data(
        *(x, y),
        depth=depth,
        nu=12.0,
        kernel=dkm.Linear(),
        noise=1e-9,
        parameterisation=parameterisation,
    )
    history = machine.fit(tolerance=1e-12)
    first, *learned = (gram.detach() for gram in machine.grams())
    root, inverse = power(first, 0.5), power(first, -0.5)
    for index, gram in enumerate(learned, 1):
        share = power(inverse @ y @ y.T @ inverse / 12, index / (depth + 1))
        torch.testing.assert_close(gram, root @ share @ root, rtol=1e-6, atol=1e-6)
    best = float(history[-1].total)
    assert int((totals(history) > best - 1e-6).nonzero()[0]) <= 12


@pytest.mark.parametrize(
    ("kernel", "depth", "nu", "iterations"),
    [
        (dkm.ArcCosine, 1, 100.0, 6),
        (dkm.ArcCosine, 2, 1.0, 20),
        (dkm.ArcCosine, 3, (10.0, 1.0, 3.0), 20),
        (dkm.SquaredExponential, 2, 10.0, 10),
        (dkm.SquaredExponential, 1, 0.1, 35),
    ],
)
def test_it_finds_the_optimum_of_lbfgs(kernel, depth, nu, iterations):
    x, y = data(12)
    options = {"depth": depth, "nu": nu, "kernel": kernel()}
    machine = FullRankDKM.from_data(x, y, **options)
    history = machine.fit()
    other = FullRankDKM.from_data(x, y, parameterisation="whitened", **options)
    best = float(other.fit(600, method="lbfgs", tolerance=1e-11)[-1].total)
    assert float(history[-1].total) == pytest.approx(best, abs=1e-6)
    assert int((totals(history) > best - 1e-6).nonzero()[0]) <= iterations
    for gram, same in zip(machine.grams(), other.grams(), strict=True):
        torch.testing.assert_close(gram, same, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [dkm.ArcCosine, dkm.SquaredExponential])
@pytest.mark.parametrize(("depth", "points"), [(1, 60), (2, 30), (3, 20)])
@pytest.mark.parametrize("nu", [0.01, 0.1, 1.0, 10.0, 100.0])
def test_it_is_no_worse_than_lbfgs(kernel, depth, nu, points):
    x, y = data(points)
    options = {"depth": depth, "nu": nu, "kernel": kernel()}
    history = FullRankDKM.from_data(x, y, **options).fit(300)
    other = FullRankDKM.from_data(x, y, parameterisation="whitened", **options)
    best = float(other.fit(2000, method="lbfgs", tolerance=1e-11)[-1].total)
    assert float(history[-1].total) > best - 1e-6
    assert bool((totals(history).diff() > 0).all())


def test_the_optimum_is_stationary():
    r"""(G^ℓ)⁻¹ = (K^ℓ)⁻¹ − (2/ν) ∂L₊/∂G^ℓ, with L₊ all terms above layer ℓ."""
    x, y = data(8)
    kernel = dkm.SquaredExponential()
    machine = FullRankDKM.from_data(x, y, nu=(0.8, 2.0), kernel=kernel, noise=0.2)
    machine.fit(tolerance=1e-13)
    first, middle, last = (gram.detach().clone().requires_grad_() for gram in machine.grams())

    def after(gram):
        own = gram.diagonal()
        return kernel.of(gram, own[:, None], own[None, :])

    likelihood = GPRegression(after(last), y, 0.2).log_marginal_likelihood
    divergence = gaussian_kl(last.detach(), after(middle))
    for gram, before, above, nu in (
        (last, middle, likelihood, 2.0),
        (middle, first, -2.0 * divergence, 0.8),
    ):
        slope = torch.autograd.grad(above, gram)[0]
        precision = torch.linalg.inv(after(before)) - (slope + slope.T) / nu
        torch.testing.assert_close(torch.linalg.inv(gram), precision, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("nu", [0.02, 1.0])
def test_every_iteration_increases_the_objective(nu):
    """Also where ν is lowered in stages, and once more where it is done."""
    x, y = data(10)
    machine = FullRankDKM.from_data(x, y, nu=nu)
    history = machine.fit()
    assert bool((totals(history).diff() > 0).all())
    evaluations = [value.evaluations for value in history]
    assert evaluations[0] == 0
    assert evaluations == sorted(set(evaluations))
    again = machine.fit()
    assert len(again) <= 4
    assert float(again[-1].total) >= float(history[-1].total)
    assert float(again[-1].total) == pytest.approx(float(history[-1].total), abs=1e-8)


def test_stages_lead_to_a_better_optimum():
    """A fit that does not begin at the kernels has none, and ends at a lower local maximum."""
    x, y = data(30)
    best = {}
    for name in ("stages", "none"):
        machine = FullRankDKM.from_data(x, y, depth=1, nu=0.01)
        if name == "none":
            with torch.no_grad():
                machine.body[0][1].factor.mul_(1.01)
        best[name] = float(machine.fit()[-1].total)
    assert best["stages"] > best["none"] + 0.01


def noisy_sine(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.linspace(-2, 2, 20, dtype=torch.float64)[:, None]
    return x, (2 * x).sin() + 0.5 * torch.randn(20, 1, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("seed", range(2))
def test_noise_is_learned_along(seed):
    x, y = noisy_sine(seed)
    options = {"depth": 1, "nu": 20.0, "kernel": dkm.Matern(1.5), "learn_noise": True}
    machine = FullRankDKM.from_data(x, y, **options)
    other = FullRankDKM.from_data(x, y, parameterisation="whitened", **options)
    history = machine.fit()
    assert len(history) <= 15
    best = other.fit(method="lbfgs", tolerance=1e-11)[-1].total.item()
    assert history[-1].total.item() == pytest.approx(best, abs=1e-6)
    noise = other.likelihood.noise.item()
    assert noise > 0.11
    assert machine.likelihood.noise.item() == pytest.approx(noise, rel=1e-3)


def test_hyperparameters_of_kernels_are_refused():
    """L-BFGS learns them, and natural steps go on from there."""
    x, y = noisy_sine(0)
    machine = FullRankDKM.from_data(
        *(x, y),
        depth=1,
        nu=20.0,
        kernel=dkm.Matern(1.5, learn=True),
        parameterisation="whitened",
    )
    with pytest.raises(
        dkm.InvalidInputError, match=r"body\.layer1\.kernel\.lengthscale\.log_value, .*use fit"
    ):
        machine.fit()
    learned = machine.fit(15, method="lbfgs")[-1].total.item()
    for module in machine.modules():
        if isinstance(module, dkm.Kernel):
            module.requires_grad_(False)
    assert machine.fit()[-1].total.item() >= learned


def test_only_what_requires_gradients_is_moved():
    x, y = data(9)
    machine = FullRankDKM.from_data(x, y)
    frozen = machine.body[0][1].factor.requires_grad_(False)
    before = frozen.clone()
    history = machine.fit()
    assert torch.equal(frozen, before)
    assert float(history[-1].total) > float(history[0].total) + 0.1


def test_steps_limit_the_iterations_and_leave_the_machine_there():
    x, y = data(9)
    machine = FullRankDKM.from_data(x, y)
    history = machine.fit(3)
    assert len(history) == 4
    assert torch.equal(machine.objective().total.detach(), history[-1].total)
    assert all(parameter.grad is None for parameter in machine.parameters())


def test_a_covariance_is_found_in_few_steps():
    """The divergence from a normal distribution, in coordinates made for it."""
    root = torch.randn(7, 7, dtype=torch.float64)
    target = root @ root.T + 0.1 * torch.eye(7)
    factor = nn.Parameter(torch.eye(7, dtype=torch.float64))
    mean = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def objective():
        return -gaussian_kl(factor @ factor.T, target) - mean.square().sum()

    coordinates = [FactorCoordinates(factor, 1.0), Coordinates(mean, 2.0)]
    count = sum(1 for _ in newton_steps(objective, coordinates, 1e-12))
    assert count <= 12
    torch.testing.assert_close(factor @ factor.T, target, rtol=1e-5, atol=1e-5)
    assert mean.abs().max().item() < 1e-5


def test_a_step_into_what_cannot_be_worked_out_is_made_shorter():
    place = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    seen = []

    def objective():
        seen.append(place.item())
        if seen[-1] <= 0:
            raise dkm.NumericalError("no logarithm")
        return place.log() - 10 * place

    steps = sum(1 for _ in newton_steps(objective, [Coordinates(place, 1.0)], 1e-13))
    assert min(seen) <= 0
    assert steps < 12
    assert place.item() == pytest.approx(0.1, rel=1e-6)


def test_a_fit_that_cannot_go_on_says_so(caplog):
    """An objective whose gradient is wrong: no step along it pays."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return -x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad

    place = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    caplog.set_level("INFO", logger="convdkm.exact.natural")
    assert list(newton_steps(lambda: Wrong.apply(place), [Coordinates(place, 1.0)], 1e-9)) == []
    assert place.item() == 1
    assert "no step increases the objective; the last promised 5.0e-01" in caplog.text

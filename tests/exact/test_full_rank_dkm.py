"""The full-rank deep kernel machine against its equations written out in NumPy."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

import convdkm as dkm
from convdkm.exact import (
    ExactKernel,
    ExactObjective,
    FullRankDKM,
    GPRegression,
    fully_connected_body,
)
from convdkm.numerics import gaussian_kl

INFINITY = float("inf")


def data(points=9, new=5, features=3):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(points + new, features, dtype=torch.float64, generator=generator)
    y = torch.stack([x[:, 0].sin() + x[:, 1], x[:, 1] * x[:, 2]], 1)
    y = y + 0.1 * torch.randn(y.shape, dtype=torch.float64, generator=generator)
    return x[:points], y[:points], x[points:]


def perturb(machine: FullRankDKM, size=0.15):
    """Move every Gram away from the kernel."""
    with torch.no_grad():
        for name, parameter in machine.named_parameters():
            if name.endswith("factor"):
                parameter.add_(size * torch.randn(parameter.shape, dtype=torch.float64))
    return machine


def numpy_arccosine(gram):
    norm = np.sqrt(np.outer(gram.diagonal(), gram.diagonal()))
    angle = np.arccos(np.clip(gram / norm, -1, 1))
    return norm * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi


def numpy_squared_exponential(gram):
    own = gram.diagonal()
    return np.exp(-0.5 * (own[:, None] + own[None, :] - 2 * gram))


KERNELS = {
    "arccosine": (dkm.ArcCosine, numpy_arccosine),
    "squared exponential": (dkm.SquaredExponential, numpy_squared_exponential),
}


def numpy_kl(learned, prior):
    ratio = np.linalg.solve(prior, learned)
    return 0.5 * (np.trace(ratio) - len(prior) - np.linalg.slogdet(ratio)[1])


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
@pytest.mark.parametrize("name", KERNELS)
def test_objective_equals_the_formula(name, parameterisation):
    kernel, reference = KERNELS[name]
    x, y, _ = data()
    machine = FullRankDKM.from_data(
        x,
        y,
        depth=2,
        kernel=kernel(),
        nu=(0.7, 3.0),
        noise=0.3,
        parameterisation=parameterisation,
    )
    grams = [gram.detach().numpy() for gram in perturb(machine).grams()]
    np.testing.assert_allclose(grams[0], x.numpy() @ x.numpy().T / 3, rtol=1e-12, atol=1e-14)
    divergences = [numpy_kl(grams[i + 1], reference(grams[i])) for i in range(2)]
    assert min(divergences) > 0.01
    normal = multivariate_normal(None, reference(grams[2]) + 0.3 * np.eye(9))
    likelihood = sum(normal.logpdf(column) for column in y.T.numpy())

    value = machine.objective()
    assert list(value.kl) == ["body.layer1.gram", "body.layer2.gram"]
    for term, divergence, nu in zip(value.kl.values(), divergences, (0.7, 3.0), strict=True):
        assert term.value.item() == pytest.approx(divergence, rel=1e-8)
        assert term.nu == nu
    assert value.log_likelihood.item() == pytest.approx(likelihood, rel=1e-9)
    penalty = 0.7 * divergences[0] + 3 * divergences[1]
    assert value.regulariser.item() == pytest.approx(penalty, rel=1e-8)
    assert value.total.item() == pytest.approx(likelihood - penalty, rel=1e-9)
    assert value.total.dtype == torch.float64


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_gradient(parameterisation):
    x, y, _ = data(points=6)
    kernel = dkm.ArcCosine(weight_variance=1.2, bias_variance=0.1)
    machine = FullRankDKM.from_data(
        x, y, kernel=kernel, learn_noise=True, parameterisation=parameterisation
    )
    perturb(machine)
    names = [name for name, _ in machine.named_parameters()]
    assert len(names) == 2 + 3 * 2 + 1
    parameters = list(machine.parameters())
    gradients = torch.autograd.grad(machine.objective().total, parameters)
    for name, parameter, gradient in zip(names, parameters, gradients, strict=True):
        direction = torch.randn(parameter.shape, dtype=torch.float64)
        step = 1e-5
        with torch.no_grad():
            parameter.add_(step * direction)
            above = machine.objective().total
            parameter.sub_(2 * step * direction)
            below = machine.objective().total
            parameter.add_(step * direction)
        torch.testing.assert_close(
            (gradient * direction).sum(),
            (above - below) / (2 * step),
            rtol=1e-6,
            atol=1e-7,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def test_prediction_equals_the_joint_pushed_through():
    """All blocks of the joint Gram of old and new points, the new ones with their covariances."""
    x, y, new = data()
    count = len(x)
    machine = perturb(FullRankDKM.from_data(x, y, depth=3, noise=0.2))
    grams = [gram.detach().numpy() for gram in machine.grams()]
    both = torch.cat([x, new]).numpy()
    joint = both @ both.T / 3
    for learned in grams[1:]:
        kernel = numpy_arccosine(joint)
        weights = np.linalg.solve(kernel[:count, :count], kernel[:count, count:])
        change = learned - kernel[:count, :count]
        joint = kernel.copy()
        joint[:count, :count] = learned
        joint[:count, count:] = learned @ weights
        joint[count:, :count] = joint[:count, count:].T
        joint[count:, count:] += weights.T @ change @ weights
        assert np.linalg.eigvalsh(joint).min() > 0
    kernel = numpy_arccosine(joint)
    gain = np.linalg.solve(kernel[:count, :count] + 0.2 * np.eye(count), kernel[:count, count:]).T
    mean = gain @ y.numpy()
    variance = (kernel[count:, count:] - gain @ kernel[:count, count:]).diagonal()
    prediction = machine.predict(new)
    assert isinstance(prediction, dkm.RealPrediction)
    np.testing.assert_allclose(prediction.mean.numpy(), mean, rtol=1e-7, atol=1e-9)
    for column in range(2):
        np.testing.assert_allclose(prediction.variance[:, column].numpy(), variance, rtol=1e-7)
    torch.testing.assert_close(prediction.target_variance, prediction.variance + 0.2)


def test_new_points_cost_no_divergence():
    """The Gram predicted for new points is that which adds nothing to the KL of its layer."""
    x, y, new = data(new=1)
    machine = perturb(FullRankDKM.from_data(x, y, depth=1))
    first = dkm.Gram.from_features(x, new)
    kernel = machine.body[0][0](first)
    gram = machine.body[0](first)

    def joint(blocks):
        return torch.cat(
            [torch.cat([blocks.ii, blocks.it.T], 1), torch.cat([blocks.it, blocks.tt[None]], 1)]
        )

    alone = machine.objective().kl["body.layer1.gram"].value
    torch.testing.assert_close(gaussian_kl(joint(gram), joint(kernel)), alone)


def test_prediction_at_training_points_is_the_posterior():
    x, y, _ = data()
    machine = perturb(FullRankDKM.from_data(x, y, noise=0.2))
    final = torch.from_numpy(numpy_arccosine(machine.grams()[-1].detach().numpy()))
    expected = GPRegression(final, y, 0.2).predict(final, final.diagonal())
    prediction = machine(x)
    torch.testing.assert_close(prediction.mean, expected.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(prediction.variance, expected.variance, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_infinite_nu_is_regression_with_the_recursive_kernel(depth):
    x, y, new = data()
    machine = FullRankDKM.from_data(x, y, depth=depth, nu=INFINITY, noise=0.2)
    assert list(machine.parameters()) == []
    kernel = ExactKernel(*(dkm.ArcCosine() for _ in range(depth + 1)))
    regression = GPRegression(kernel(x), y, 0.2)
    value = machine.objective()
    assert value.kl == {}
    torch.testing.assert_close(value.total, regression.log_marginal_likelihood)
    expected = regression.predict(kernel(new, x), kernel.variance(new))
    prediction = machine.predict(new)
    torch.testing.assert_close(prediction.mean, expected.mean)
    torch.testing.assert_close(prediction.variance, expected.variance)
    assert len(machine.fit(steps=5)) == 1


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_it_starts_at_the_recursive_kernel(parameterisation):
    x, y, new = data()
    options = {"depth": 2, "noise": 0.2, "parameterisation": parameterisation}
    machine = FullRankDKM.from_data(x, y, **options)
    limit = FullRankDKM.from_data(x, y, nu=INFINITY, **options)
    torch.testing.assert_close(machine.objective().total, limit.objective().total)
    torch.testing.assert_close(machine.predict(new).variance, limit.predict(new).variance)
    scaled = FullRankDKM.from_data(x, y, initial_scale=4.0, **options)
    torch.testing.assert_close(scaled.grams()[1], 4 * limit.grams()[1])


def trained(nu, steps=100):
    x, y, new = data()
    machine = FullRankDKM.from_data(x, y, nu=nu, noise=0.2)
    return machine, machine.fit(steps), new


def test_large_nu_tends_to_the_recursive_kernel_as_its_inverse():
    limit, history, new = trained(INFINITY)
    far = {}
    for nu in (1e2, 1e4, 1e6):
        machine, _, _ = trained(nu)
        far[nu] = [
            float((gram - kernel).detach().norm() / kernel.norm())
            for gram, kernel in zip(machine.grams()[1:], limit.grams()[1:], strict=True)
        ]
        far[nu].append(float((machine.predict(new).mean - limit.predict(new).mean).norm()))
    for small, large in zip(far[1e4], far[1e6], strict=True):
        assert small / large == pytest.approx(100, rel=0.05)
    for small, large in zip(far[1e2], far[1e4], strict=True):
        assert small / large == pytest.approx(100, rel=0.5)
    assert max(far[1e6]) < 1e-4
    assert far[1e6][0] > 1e-8
    torch.testing.assert_close(machine.objective().total, history[-1].total, rtol=1e-5, atol=0)


@pytest.mark.parametrize("seed", range(3))
def test_learned_grams_predict_better_than_the_recursive_kernel(seed):
    """Representation learning, on held-out points; over eight seeds the ratio is 0.54 to 0.76."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(230, 5, dtype=torch.float64, generator=generator)
    y = x.sin().sum(1) + 0.1 * torch.randn(230, dtype=torch.float64, generator=generator)
    errors, scores = {}, {}
    for nu in (1.0, INFINITY):
        machine = FullRankDKM.from_data(
            x[:80], y[:80], nu=nu, kernel=dkm.SquaredExponential(), noise=0.05
        )
        machine.fit(steps=40)
        prediction = machine.predict(x[80:])
        errors[nu] = (prediction.mean[:, 0] - y[80:]).square().mean().item()
        scores[nu] = prediction.log_prob(y[80:]).mean().item()
    assert errors[1.0] < 0.85 * errors[INFINITY]
    assert scores[1.0] > scores[INFINITY] + 0.05


def test_small_nu_raises_the_likelihood():
    likelihoods, divergences = [], []
    for nu in (INFINITY, 10.0, 1.0, 0.1, 0.0):
        _, history, _ = trained(nu, steps=10 if nu == 0 else 100)
        likelihoods.append(history[-1].log_likelihood.item())
        divergences.append(sum(term.value.item() for term in history[-1].kl.values()))
    gains = np.diff(likelihoods)
    assert (gains > 0.05).all()
    assert (np.diff(divergences) > 0.01).all()
    assert history[-1].regulariser.item() == 0


@pytest.mark.parametrize("method", ["natural", "lbfgs", "adam"])
@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_fit_increases_the_objective(method, parameterisation):
    x, y, _ = data()
    machine = FullRankDKM.from_data(
        x, y, nu=0.5, learn_noise=True, parameterisation=parameterisation
    )
    noise = machine.likelihood.noise.item()
    steps, rate = 15, 1e-3 if method == "adam" else None
    history = machine.fit(steps=steps, method=method, learning_rate=rate)
    totals = [value.total.item() for value in history]
    assert len(totals) == steps + 1
    assert totals[-1] > totals[0] + 0.05
    assert (np.diff(totals) > 0).all()
    assert not history[0].total.requires_grad
    assert isinstance(history[0], ExactObjective)
    assert machine.objective().total.item() == pytest.approx(totals[-1], rel=1e-12)
    assert machine.likelihood.noise.item() != noise


def test_lbfgs_stops_at_a_stationary_point():
    x, y, _ = data()
    machine = FullRankDKM.from_data(x, y, nu=1.0, parameterisation="whitened")
    history = machine.fit(steps=1000, method="lbfgs", tolerance=1e-10)
    assert 10 < len(history) < 500
    gradients = torch.autograd.grad(machine.objective().total, list(machine.parameters()))
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-3
    assert len(machine.fit(steps=0)) == 1


def test_a_failed_fit_leaves_the_machine_as_it_was():
    x, y, _ = data()
    machine = FullRankDKM.from_data(x, y, learn_noise=True)
    before = machine.objective().total.item()
    with pytest.raises(dkm.ConvDKMError):
        machine.fit(steps=5, method="adam", learning_rate=1e6)
    assert machine.objective().total.item() == pytest.approx(before, rel=1e-14)


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_state_dict_round_trip(parameterisation):
    x, y, new = data()
    options = {"depth": 2, "nu": (0.5, INFINITY), "parameterisation": parameterisation}
    machine = perturb(FullRankDKM.from_data(x, y, **options))
    machine.fit(steps=2)
    other = FullRankDKM((9, 3), fully_connected_body(**options), dkm.Gaussian(2))
    other.load_state_dict(machine.state_dict())
    assert torch.equal(other.predict(new).mean, machine.predict(new).mean)
    assert torch.equal(other.objective().total, machine.objective().total)
    assert torch.equal(other.targets, y)


def test_precision_stays():
    x, y, new = data()
    machine = FullRankDKM.from_data(x.float(), y.float()).float().half()
    assert machine.inputs.dtype == machine.likelihood.log_noise.dtype == torch.float64
    assert machine.predict(new.float()).mean.dtype == torch.float64


def test_one_output_may_be_a_vector():
    x, y, new = data()
    machine = FullRankDKM.from_data(x, y[:, 0])
    assert machine.predict(new).mean.shape == (5, 1)
    torch.testing.assert_close(
        machine.objective().total, FullRankDKM.from_data(x, y[:, :1]).objective().total
    )


def test_the_objective_shows_its_parts():
    x, y, _ = data()
    text = repr(FullRankDKM.from_data(x, y, depth=1).objective())
    assert text.startswith("ExactObjective(total=-")
    assert "body.layer1.gram: " in text


def test_errors():
    x, y, new = data()
    machine = FullRankDKM((9, 3), fully_connected_body(), dkm.Gaussian(2))
    with pytest.raises(dkm.NotInitialisedError, match="no training data"):
        machine.objective()
    with pytest.raises(dkm.NotInitialisedError, match="no training data"):
        machine.predict(new)
    with pytest.raises(dkm.InvalidInputError, match="made for 9 points, got 5"):
        machine.initialise(new, y[:5])
    with pytest.raises(dkm.InvalidInputError, match=r"shape \(9, 2\)"):
        machine.initialise(x, y[:, 0])
    with pytest.raises(dkm.InvalidInputError, match=r"shape \(N, 3\), got \(9, 2\)"):
        machine.initialise(y, x)
    spoilt = x.clone()
    spoilt[4, 1] = float("nan")
    with pytest.raises(dkm.InvalidInputError, match=r"rows \[4\]"):
        machine.initialise(spoilt, y)
    with pytest.raises(dkm.InvalidInputError, match="targets are NaN"):
        machine.initialise(x, y / 0)
    with pytest.raises(dkm.InvalidInputError, match="floating-point"):
        machine.initialise(x.long(), y)
    with pytest.raises(dkm.InvalidInputError, match="inputs must be a matrix"):
        FullRankDKM.from_data(x[0], y)
    with pytest.raises(dkm.InvalidInputError, match="targets must be a matrix"):
        FullRankDKM.from_data(x, y.tolist())
    for options, message in (
        ({"depth": -1}, "depth"),
        ({"nu": (1.0, 2.0, 3.0)}, "each of 2 layers, got 3"),
        ({"nu": -1.0}, "nu must lie"),
        ({"noise": 0.0}, "noise must be a positive, finite number"),
        ({"parameterisation": "none"}, "parameterisation must be one of"),
    ):
        with pytest.raises(dkm.InvalidInputError, match=message):
            FullRankDKM.from_data(x, y, **options)
    for shape, message in (
        ((0, 3), "num_points must be a positive integer, got 0"),
        ((3, -1), "in_features must be a positive integer, got -1"),
        ((3,), r"shape must be \(P, N0\) for vectors"),
    ):
        with pytest.raises(dkm.InvalidInputError, match=message):
            FullRankDKM(shape, fully_connected_body(), dkm.Gaussian(1))
    with pytest.raises(dkm.InvalidInputError, match="body must be a Layer"):
        FullRankDKM((9, 3), [dkm.ArcCosine()], dkm.Gaussian(2))
    with pytest.raises(dkm.InvalidInputError, match="likelihood must be a Likelihood"):
        FullRankDKM((9, 3), dkm.ArcCosine(), "gaussian")
    ready = FullRankDKM.from_data(x, y)
    with pytest.raises(dkm.InvalidInputError, match="method must be one of"):
        ready.fit(method="newton")
    with pytest.raises(dkm.InvalidInputError, match="must not be negative"):
        ready.fit(steps=-1)
    with pytest.raises(dkm.InvalidInputError, match="leave out learning_rate"):
        ready.fit(learning_rate=0.1)
    with pytest.raises(dkm.NotPositiveDefiniteError, match=r"layer 'body\.layer1\.gram'"):
        FullRankDKM.from_data(torch.zeros(2, 2), torch.ones(2), kernel=dkm.Linear())

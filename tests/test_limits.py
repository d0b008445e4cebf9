"""Limits in which a deep kernel machine must become something that is known exactly."""

import math

import pytest
import torch

import convdkm as dkm
from convdkm.exact import Convolution, ExactKernel, FullRankDKM, GPRegression

INFINITY = float("inf")
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def vectors(count):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 3, dtype=torch.float64, generator=generator)
    y = torch.stack([x[:, 0].sin() + x[:, 1], x[:, 1] * x[:, 2]], 1)
    y = y + 0.1 * torch.randn(count, 2, dtype=torch.float64, generator=generator)
    return x, y


def with_inducing(machine, points):
    """A machine initialised with given inducing inputs."""
    machine.initialise(points, seed=0)
    with torch.no_grad():
        machine.input.inducing.copy_(points)
    return machine


@torch.no_grad()
def set_optimal_head(machine, x, y):
    """Set the head to the posterior that is best for Gaussian noise (Titsias, 2009)."""
    gram = machine.gram(x)
    prior, cross, noise = gram.ii, gram.it.T, machine.likelihood.noise
    middle = prior + cross @ cross.T / noise
    covariance = prior @ torch.linalg.solve(middle, prior)
    mean = prior @ torch.linalg.solve(middle, cross @ y) / noise
    factor = torch.linalg.cholesky(0.5 * (covariance + covariance.T))
    if machine.head.parameterisation == "whitened":
        lower = torch.linalg.cholesky(prior)
        mean = torch.linalg.solve_triangular(lower, mean, upper=False)
        factor = torch.linalg.solve_triangular(lower, factor, upper=False)
    machine.head.mean.copy_(mean.T)
    factor = factor * machine.head.divisor
    machine.head.factor.copy_(factor.expand_as(machine.head.factor))


def all_patches(x, window):
    places = math.prod(window.output_space(x.shape[2:]))
    which = torch.arange(len(x)).repeat_interleave(places)
    return window.patches(x, which, torch.arange(places).repeat(len(x)))


# -- ν = ∞: the machine is an NNGP -------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("kernel", [dkm.ArcCosine, dkm.SquaredExponential])
def test_infinite_nu_on_vectors_is_the_recursive_kernel(kernel, depth):
    x, _ = vectors(9)
    machine = dkm.fully_connected(3, 2, 4, depth, nu=INFINITY, kernel=kernel(), dtype=torch.float64)
    with_inducing(machine, x[:4])
    assert list(machine.body.parameters()) == []
    exact = ExactKernel(*(kernel() for _ in range(depth + 1)))
    gram = machine.gram(x)
    torch.testing.assert_close(gram.ii, exact(x[:4]), **CLOSE)
    torch.testing.assert_close(gram.it, exact(x, x[:4]), **CLOSE)
    torch.testing.assert_close(gram.tt, exact.variance(x), **CLOSE)
    torch.testing.assert_close(ExactKernel(machine)(x), exact(x), **CLOSE)
    assert machine.plan().kl == {}


def set_to_places(layer, space):
    """Mixing weights that make inducing points of the places of an image, where they were before.

    New inducing point r is the window at output place r, each place of it being the old inducing
    point that stands for that place of the image: ``C_{d,r,i} = 1`` where ``i = r + d``.
    """
    window = layer.window
    number = torch.arange(math.prod(space), dtype=torch.float64).reshape(1, 1, *space) + 1
    places = math.prod(window.output_space(space))
    which = window.patches(number, torch.zeros(places, dtype=torch.long), torch.arange(places))
    old = torch.arange(math.prod(space)).reshape(1, -1, *(1,) * window.ndim) + 1
    with torch.no_grad():
        layer.weight.copy_((which == old).double())
    return window.output_space(space)


def test_infinite_nu_on_images_is_rows_of_the_exact_kernel():
    """Where inducing points are all places of an image, G_it is its rows of the full covariance."""
    space = (4, 5)
    anchor, x = torch.randn(1, 2, *space).double(), torch.randn(3, 2, *space).double()
    body = dkm.Sequential(
        dkm.ArcCosine(),
        dkm.Conv(20, 20, 3),
        dkm.GramLayer(20, INFINITY),
        dkm.Skip(dkm.Sequential(dkm.ArcCosine(), dkm.Conv(20, 20, (1, 3)))),
        dkm.SquaredExponential(2.0),
        dkm.Conv(20, 6, 3, stride=2),
        dkm.GramLayer(6, INFINITY),
    )
    patches = dkm.PatchInput(2, 20)
    patches.initialise(anchor)
    with torch.no_grad():
        patches.inducing.copy_(all_patches(anchor, patches.window))
    for layer in (body[1], body[3].body[1]):
        assert set_to_places(layer, space) == space
    assert set_to_places(body[5], space) == (2, 3)

    gram = body(patches(x))
    rows = ExactKernel(patches, body).gram(x, anchor)
    torch.testing.assert_close(gram.tt, rows.left_variances, **CLOSE)
    expected = rows.cross[:, 0].flatten(3).movedim(3, 1)
    torch.testing.assert_close(gram.it, expected, **CLOSE)
    torch.testing.assert_close(gram.ii, rows.right.reshape(6, 6), **CLOSE)
    learned = [name for name, _ in body.named_parameters()]
    assert learned == ["1.weight", "3.body.1.weight", "5.weight"]


# -- ν → ∞ by training -------------------------------------------------------------------------


def train_grams(machine, x, y, rounds=3):
    """Maximise the objective over the Gram layers, and over the head in closed form, in turn."""
    grams = [value for name, value in machine.body.named_parameters() if name.endswith("factor")]
    for _ in range(rounds):
        set_optimal_head(machine, x, y)
        optimiser = torch.optim.LBFGS(
            grams,
            max_iter=40,
            tolerance_grad=0,
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        )

        def loss():
            optimiser.zero_grad()  # noqa: B023
            value = -machine.objective(x, y, num_data=len(x)).total
            value.backward()
            return value.detach()

        optimiser.step(loss)


def test_large_nu_tends_to_the_nngp_as_its_inverse():
    x, y = vectors(16)

    def machine(nu):
        model = dkm.fully_connected(
            3, 2, 8, 2, nu=nu, likelihood=dkm.Gaussian(2, noise=0.1), dtype=x.dtype
        )
        return with_inducing(model, x[:8])

    limit = machine(INFINITY)
    first = limit.body[0].plan(limit.input.inducing_block()).ii
    kernels = [first, limit.body[1].plan(first).ii]
    distances = {}
    for nu in (1e2, 1e4, 1e6):
        model = machine(nu)
        start = model.objective(x, y, num_data=len(x)).total.item()
        train_grams(model, x, y)
        assert model.objective(x, y, num_data=len(x)).total.item() > start
        ii, distances[nu] = model.input.inducing_block(), []
        for layer, kernel in zip((model.body[0], model.body[1]), kernels, strict=True):
            ii = layer.plan(ii).ii
            distances[nu].append(float((ii - kernel).detach().norm() / kernel.detach().norm()))
    for layer in range(2):
        far, near, nearest = (distances[nu][layer] for nu in (1e2, 1e4, 1e6))
        assert far > 1e-4
        assert far / near == pytest.approx(100, rel=0.5)
        assert near / nearest == pytest.approx(100, rel=0.02)


# -- inducing points = training points: the exact machine --------------------------------------


@pytest.mark.parametrize("head", ["direct", "whitened"])
@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_training_points_as_inducing_points_give_the_exact_machine(parameterisation, head):
    everything, targets = vectors(14)
    x, y, new = everything[:9], targets[:9], everything[9:]
    exact = FullRankDKM.from_data(x, y, depth=2, nu=0.5, parameterisation=parameterisation)
    exact.fit(steps=5)
    sparse = dkm.fully_connected(
        3,
        2,
        9,
        2,
        nu=0.5,
        gram_parameterisation=parameterisation,
        head_parameterisation=head,
        dtype=torch.float64,
    )
    with_inducing(sparse, x)
    sparse.body.load_state_dict(exact.body.state_dict())
    sparse.likelihood.load_state_dict(exact.likelihood.state_dict())
    rough = sparse.objective(x, y, num_data=len(x)).total.item()
    set_optimal_head(sparse, x, y)

    value, expected = sparse.objective(x, y, num_data=len(x)), exact.objective()
    assert expected.regulariser.item() > 0.1
    assert rough < value.total.item() - 0.1
    torch.testing.assert_close(9 * value.total, expected.total, rtol=1e-8, atol=0)
    for name, term in expected.kl.items():
        torch.testing.assert_close(value.kl[name].value, term.value, **CLOSE)
    approximate, truth = sparse.predict(new), exact.predict(new)
    for block in ("mean", "variance", "target_variance"):
        torch.testing.assert_close(
            getattr(approximate, block), getattr(truth, block), rtol=1e-7, atol=1e-8
        )


def test_fewer_inducing_points_bound_the_exact_likelihood():
    x, y = vectors(12)
    exact = FullRankDKM.from_data(x, y, depth=1, nu=INFINITY).objective().total.item()
    bounds = []
    for count in (2, 5, 9, 12):
        machine = dkm.fully_connected(3, 2, count, 1, nu=INFINITY, dtype=torch.float64)
        with_inducing(machine, x[:count])
        set_optimal_head(machine, x, y)
        bounds.append(12 * machine.objective(x, y, num_data=len(x)).total.item())
    assert bounds == sorted(bounds)
    assert bounds[2] < exact - 0.01
    assert bounds[3] == pytest.approx(exact, rel=1e-8)


# -- Gaussian noise: the best posterior is known ----------------------------------------------


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
@pytest.mark.parametrize("covariance", ["shared", "per-output"])
def test_the_optimal_posterior_is_stationary(parameterisation, covariance):
    x, y = vectors(12)
    machine = dkm.fully_connected(
        3,
        2,
        5,
        1,
        head_parameterisation=parameterisation,
        head_covariance=covariance,
        dtype=torch.float64,
    )
    with_inducing(machine, x[:5])
    head = list(machine.head.parameters())

    def gradient():
        parts = torch.autograd.grad(machine.objective(x, y, num_data=len(x)).total, head)
        return max(float(part.abs().max()) for part in parts)

    assert gradient() > 0.1
    set_optimal_head(machine, x, y)
    assert gradient() < 1e-9
    best = machine.objective(x, y, num_data=len(x)).total.item()
    with torch.no_grad():
        for parameter in head:
            parameter.add_(0.01 * torch.randn(parameter.shape))
    assert machine.objective(x, y, num_data=len(x)).total.item() < best - 1e-6


# -- inducing patches = all patches: exact pooling ---------------------------------------------


@pytest.mark.parametrize("kernel", [dkm.ArcCosine, dkm.SquaredExponential, dkm.Linear])
def test_all_patches_as_inducing_points_make_pooling_exact(kernel):
    """The Nyström approximation of global average pooling is exact where nothing is left out."""
    x = torch.randn(2, 3, 2, 3).double()
    count = 12
    machine = dkm.DeepKernelMachine(
        dkm.PatchInput(3, count),
        dkm.Sequential(kernel(), dkm.GramLayer(count, INFINITY), dkm.GlobalAveragePool()),
        dkm.GPHead(count, 2),
        dkm.Gaussian(2),
        dtype=torch.float64,
    ).initialise(x, seed=0)
    with torch.no_grad():
        machine.input.inducing.copy_(all_patches(x, machine.input.window))
    exact = ExactKernel(Convolution(3), kernel(), dkm.GlobalAveragePool())
    whole = ExactKernel(Convolution(3), kernel()).gram(x)
    assert torch.linalg.eigvalsh(whole.matrix()).min() > 1e-6

    gram = machine.gram(x)
    torch.testing.assert_close(gram.ii, whole.matrix(), **CLOSE)
    torch.testing.assert_close(gram.tt, exact.variance(x), rtol=1e-8, atol=0)
    rows = whole.matrix().reshape(count, 2, 6).mean(2).T
    torch.testing.assert_close(gram.it, rows, **CLOSE)
    # With fewer patches it is that of the corrected Nyström approximation, and another.
    matrix = whole.matrix()
    few = dkm.GlobalAveragePool().plan(matrix[:4, :4])
    it = matrix[:4].reshape(4, 2, 6).transpose(0, 1)
    _, pooled = few.data(it, whole.left_variances.flatten(1))
    low = matrix[:, :4] @ torch.linalg.solve(matrix[:4, :4], matrix[:4])
    corrected = low + torch.diag((matrix - low).diagonal())
    means = corrected.reshape(2, 6, 2, 6).mean((1, 3)).diagonal()
    torch.testing.assert_close(pooled, means, rtol=1e-8, atol=0)
    assert not torch.allclose(pooled, exact.variance(x), rtol=1e-3)


def test_all_patches_give_exact_regression_on_images():
    """A machine whose inducing patches are all patches of the data is GP regression with K_Conv."""
    x = torch.randn(4, 3, 2, 3).double()
    y = torch.randn(3, 2).double()
    count = 18
    machine = dkm.DeepKernelMachine(
        dkm.PatchInput(3, count),
        dkm.Sequential(dkm.ArcCosine(), dkm.GlobalAveragePool()),
        dkm.GPHead(count, 2, parameterisation="whitened"),
        dkm.Gaussian(2, noise=0.3),
        dtype=torch.float64,
    ).initialise(x[:3], seed=0)
    with torch.no_grad():
        machine.input.inducing.copy_(all_patches(x[:3], machine.input.window))
    set_optimal_head(machine, x[:3], y)
    kernel = ExactKernel(Convolution(3), dkm.ArcCosine(), dkm.GlobalAveragePool())
    regression = GPRegression(kernel(x[:3]), y, 0.3)
    torch.testing.assert_close(
        3 * machine.objective(x[:3], y, num_data=3).total,
        regression.log_marginal_likelihood,
        rtol=1e-8,
        atol=0,
    )
    expected = regression.predict(kernel(x[:3]), kernel.variance(x[:3]))
    prediction = machine.predict(x[:3])
    torch.testing.assert_close(prediction.mean, expected.mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(prediction.variance, expected.variance, rtol=1e-7, atol=1e-8)
    new = regression.predict(kernel(x[3:], x[:3]), kernel.variance(x[3:]))
    torch.testing.assert_close(machine.predict(x[3:]).mean, new.mean, rtol=1e-7, atol=1e-8)

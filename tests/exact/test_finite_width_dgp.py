"""Deep Gaussian processes of finite width, and the deep kernel machine as their limit."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import convdkm as dkm
from convdkm.exact import (
    ExactKernel,
    FiniteWidthDGP,
    FullRankDKM,
    fully_connected_body,
    wishart_log_density,
)


def data(points=4):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(points, 3, dtype=torch.float64, generator=generator)
    y = torch.stack([x[:, 0].sin() + x[:, 1], x[:, 1] * x[:, 2]], 1)
    return x, y


def positive_definite(size, seed, *batch):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(*batch, size, size + 3, dtype=torch.float64, generator=generator)
    return root @ root.mT / (size + 3)


def arccosine(grams):
    """The arc-cosine kernel of order 1, of a batch of Gram matrices."""
    norm = grams.diagonal(dim1=1, dim2=2).sqrt()
    norm = norm[:, :, None] * norm[:, None, :]
    angle = (grams / norm).clamp(-1, 1).acos()
    return norm * (angle.sin() + (math.pi - angle) * angle.cos()) / math.pi


def distance(grams, others):
    """Largest relative distance over the layers."""
    pairs = zip(grams, others, strict=True)
    return max(float((gram - other).norm() / other.norm()) for gram, other in pairs)


def moved_machine(kernel, nu=(1.0, 2.0)):
    """A machine away from its start, the kernels of its layers different from each other."""
    x, y = data()
    machine = FullRankDKM.from_data(x, y, depth=2, kernel=kernel, nu=nu, noise=0.3)
    with torch.no_grad():
        for parameter in machine.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, dtype=torch.float64))
    return machine, [gram.detach() for gram in machine.grams()[1:]]


# -- the Wishart distribution ------------------------------------------------------------------


@pytest.mark.parametrize(("size", "width"), [(1, 1), (1, 7), (3, 3), (3, 4), (5, 12), (5, 4000)])
def test_the_density_is_that_of_scipy_and_torch(size, width):
    gram, mean = positive_definite(size, 1), positive_definite(size, 2)
    found = wishart_log_density(gram, mean, width)
    expected = stats.wishart(width, mean.numpy() / width).logpdf(gram.numpy())
    assert found.item() == pytest.approx(expected, rel=1e-10)
    torch.testing.assert_close(
        found, torch.distributions.Wishart(width, mean / width).log_prob(gram), rtol=1e-10, atol=0
    )


def test_a_batch_is_its_matrices_one_by_one():
    x, y = data()
    process = FiniteWidthDGP(x, (6, 9), copies=3)
    grams = [positive_definite(4, 1, 2, 5), positive_definite(4, 2, 2, 5)]
    found = process.log_joint(grams, y)
    assert found.shape == (2, 5)
    for i in range(2):
        for j in range(5):
            alone = process.log_joint([gram[i, j] for gram in grams], y)
            torch.testing.assert_close(found[i, j], alone)


@pytest.mark.parametrize(
    "kernel", [dkm.ArcCosine(), dkm.SquaredExponential(), dkm.ArcCosine(0) + dkm.Linear()]
)
def test_the_joint_is_the_product_of_its_layers(kernel):
    x, y = data()
    process = FiniteWidthDGP(x, (6, 9), kernel=kernel, noise=0.3, copies=5)
    grams = [positive_definite(4, 1), positive_definite(4, 2)]
    kernels = [kernel.plan(gram).ii.numpy() for gram in (x @ x.T / 3, *grams)]
    prior = stats.wishart(6, kernels[0] / 6).logpdf(grams[0].numpy())
    prior += stats.wishart(9, kernels[1] / 9).logpdf(grams[1].numpy())
    normal = stats.multivariate_normal(None, kernels[2] + 0.3 * np.eye(4))
    likelihood = 5 * normal.logpdf(y.T.numpy()).sum()
    assert process.log_prior(grams).item() == pytest.approx(prior, rel=1e-9)
    assert process.log_likelihood(grams, y).item() == pytest.approx(likelihood, rel=1e-10)
    joint = process.log_joint(grams, y)
    assert joint.item() == pytest.approx(prior + likelihood, rel=1e-9)
    assert joint.dtype == torch.float64


def test_without_layers_it_is_regression():
    x, y = data()
    process = FiniteWidthDGP(x, (), noise=0.3)
    machine = FullRankDKM.from_data(x, y, depth=0, noise=0.3)
    torch.testing.assert_close(process.log_joint([], y), machine.objective().total)
    assert process.mode(y) == []


# -- the prior ---------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [2, 8, 32])
def test_moments_of_the_first_gram(width):
    """The mean is K(G⁰), and the variance of an entry (K_ii K_jj + K_ij²)/N."""
    x, _ = data()
    count = 20_000
    process = FiniteWidthDGP(x, (width,))
    gram = process.sample(count, generator=torch.Generator().manual_seed(1)).grams[0]
    kernel = process.recursive_grams()[0]
    own = kernel.diagonal()
    variance = (own[:, None] * own + kernel.square()) / width
    error = (gram.mean(0) - kernel) / (variance / count).sqrt()
    assert error.abs().max() < 4.5
    torch.testing.assert_close(gram.var(0), variance, rtol=0.15, atol=0)


@pytest.mark.parametrize("widths", [(2, 3), (10, 5)])
def test_draws_are_consistent_from_layer_to_layer(widths):
    x, _ = data()
    count = 10_000
    process = FiniteWidthDGP(x, widths)
    sample = process.sample(count, num_outputs=3, generator=torch.Generator().manual_seed(2))
    assert sample.functions.shape == (count, 4, 3)
    for features, gram, width in zip(sample.features, sample.grams, widths, strict=True):
        assert features.shape == (count, 4, width)
        torch.testing.assert_close(features @ features.mT / width, gram)
        rank = torch.linalg.matrix_rank(gram[:50], hermitian=True, rtol=1e-9)
        assert (rank == min(width, 4)).all()
    for below, above in (
        (sample.grams[0], sample.grams[1]),
        (sample.grams[1], sample.functions @ sample.functions.mT / 3),
    ):
        change = above - arccosine(below)
        assert (change.mean(0) / (change.std(0) / math.sqrt(count))).abs().max() < 4.5


def test_a_generator_determines_the_draws():
    process = FiniteWidthDGP(data()[0], (3,))
    draws = [process.sample(2, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(draws[0].functions, draws[1].functions)
    assert not torch.equal(draws[0].functions, draws[2].functions)
    global_state = torch.get_rng_state()
    process.sample(2, generator=torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), global_state)


@pytest.mark.parametrize("kernel", [dkm.ArcCosine(), dkm.SquaredExponential()])
def test_functions_of_wide_layers_have_the_nngp_covariance(kernel):
    x, _ = data(points=3)
    process = FiniteWidthDGP(x, (400, 400), kernel=kernel)
    functions = process.sample(
        2000, num_outputs=20, generator=torch.Generator().manual_seed(3)
    ).functions
    expected = ExactKernel(kernel, kernel, kernel)(x)
    found = functions @ functions.mT / 20
    torch.testing.assert_close(found.mean(0), expected, rtol=0.02, atol=0.02 * expected.max())


@pytest.mark.parametrize("width", [2, 8, 64])
def test_functions_have_heavy_tails_that_go_as_the_width_grows(width):
    """With K_ii = G_ii of mean m and variance 2m²/N, E f⁴ is 3(1 + 2/N) (E f²)²."""
    process = FiniteWidthDGP(data()[0], (width,))
    f = process.sample(40_000, num_outputs=4, generator=torch.Generator().manual_seed(4)).functions[
        :, 0
    ]
    ratio = f.pow(4).mean() / (3 * f.square().mean().square())
    assert ratio.item() == pytest.approx(1 + 2 / width, rel=0.06)


# -- the limit ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel", [dkm.ArcCosine(weight_variance=1.5, bias_variance=0.2), dkm.SquaredExponential()]
)
def test_the_scaled_joint_tends_to_the_objective_as_the_inverse_width(kernel):
    machine, grams = moved_machine(kernel)
    objective = machine.objective().total.item()
    slope = -2.5 * sum(torch.linalg.slogdet(gram).logabsdet.item() for gram in grams)
    whole = []
    for copies in (10, 100, 1000, 10_000):
        process = FiniteWidthDGP.from_machine(machine, copies)
        assert process.widths == (copies, 2 * copies)
        joint = process.log_joint(grams, machine.targets).item()
        gap = (joint - process.log_constant) / copies - objective
        assert gap * copies == pytest.approx(slope, rel=1e-5)
        whole.append(abs(joint / copies - objective))
    assert (np.diff(whole) < 0).all()
    assert whole[-1] < 0.01


def test_the_constant_grows_as_the_logarithm_of_the_width():
    """By Stirling's formula, as P(P + 1)/4 log N."""
    x, _ = data()
    constants = [FiniteWidthDGP(x, (width,)).log_constant for width in (10**3, 10**4, 10**5)]
    assert np.diff(constants) == pytest.approx(5 * math.log(10), rel=1e-2)


def test_widths_follow_nu():
    x, y = data()
    machine = FullRankDKM.from_data(x, y, depth=3, nu=(0.7, 1.0, 2.5))
    assert FiniteWidthDGP.from_machine(machine, 10).widths == (7, 10, 25)


@pytest.mark.parametrize("width", [6, 20, 500])
def test_the_mode_of_the_prior(width):
    """Without information from targets it is (1 − (P + 1)/N) K(G⁰)."""
    x, y = data()
    process = FiniteWidthDGP(x, (width,), noise=1e14)
    mode = process.mode(y)
    expected = (1 - 5 / width) * process.recursive_grams()[0]
    torch.testing.assert_close(mode[0], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kernel", [dkm.ArcCosine(), dkm.SquaredExponential()])
def test_the_mode_is_a_maximum(kernel):
    x, y = data()
    process = FiniteWidthDGP(x, (30, 40), kernel=kernel, noise=0.2, copies=20)
    mode = process.mode(y)
    leaves = [gram.clone().requires_grad_() for gram in mode]
    gradients = torch.autograd.grad(process.log_joint(leaves, y), leaves)
    start = [gram.clone().requires_grad_() for gram in process.recursive_grams()]
    first = torch.autograd.grad(process.log_joint(start, y), start)
    for gradient, before in zip(gradients, first, strict=True):
        assert gradient.abs().max() < 1e-5 * before.abs().max()
    best = process.log_joint(mode, y)
    for seed in range(20):
        change = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)).double()
        near = [gram + 0.01 * gram.norm() * (change + change.T) / 2 for gram in mode]
        if all(torch.linalg.eigvalsh(gram).min() > 0 for gram in near):
            assert process.log_joint(near, y) < best
    elsewhere = process.mode(y, start=[1.5 * gram for gram in mode])
    assert distance(elsewhere, mode) < 1e-6


@pytest.mark.parametrize("kernel", [dkm.ArcCosine(), dkm.SquaredExponential()])
def test_the_mode_tends_to_the_optimum_of_the_machine_as_the_inverse_width(kernel):
    x, y = data()
    machine = FullRankDKM.from_data(x, y, depth=2, kernel=kernel, nu=(1.0, 2.0), noise=0.2)
    machine.fit(steps=500, tolerance=1e-13)
    optimum = [gram.detach() for gram in machine.grams()[1:]]
    far = []
    for copies in (100, 1000, 10_000):
        process = FiniteWidthDGP.from_machine(machine, copies)
        far.append(distance(process.mode(machine.targets), optimum))
    assert far[0] / far[1] == pytest.approx(10, rel=0.1)
    assert far[1] / far[2] == pytest.approx(10, rel=0.01)
    assert far[2] < 1e-3
    assert distance(optimum, process.recursive_grams()) > 0.05  # representations were learned


def test_unrepeated_targets_leave_no_trace_in_wide_layers():
    """The standard limit: the mode tends to the recursive kernel, whatever the targets are."""
    x, y = data()
    far = {}
    for width in (100, 1000, 10_000):
        process = FiniteWidthDGP(x, (width, width), noise=0.2)
        modes = [process.mode(targets) for targets in (y, 3 * y.flip(0))]
        far[width] = [
            distance(modes[0], process.recursive_grams()),
            distance(modes[1], process.recursive_grams()),
            distance(*modes),
        ]
    for wide, wider in ((100, 1000), (1000, 10_000)):
        np.testing.assert_allclose(np.divide(far[wide], far[wider]), 10, rtol=0.2)
    assert far[10_000][2] > 1e-6


# -- posteriors, by quadrature -----------------------------------------------------------------


def matrices_of_two_points(steps=40, size=5.0):
    """A grid over positive definite 2×2 matrices, and the logarithm of each one's volume.

    With u = log a, v = log b and ρ = tanh z for G = (a, c; c, b), da db dc is
    a b √(ab) (1 − ρ²) du dv dz.
    """
    z = torch.linspace(-size, size, steps, dtype=torch.float64)
    a, b, z = torch.meshgrid((z - 1).exp(), (z - 1).exp(), z, indexing="ij")
    rho, log_slope = z.tanh(), -2 * z.cosh().log()
    c = rho * (a * b).sqrt()
    gram = torch.stack([torch.stack([a, c], -1), torch.stack([c, b], -1)], -1)
    log_volume = 1.5 * (a * b).log() + log_slope + 3 * math.log(2 * size / (steps - 1))
    return gram.reshape(-1, 2, 2), log_volume.flatten()


POINTS = torch.tensor([[1.2, 0.1], [0.3, 0.9]], dtype=torch.float64)
VALUES = torch.tensor([[0.9], [-0.6]], dtype=torch.float64)


@pytest.mark.parametrize("width", [4, 12])
def test_a_posterior_by_quadrature_is_that_by_weighted_draws(width):
    """Density and draws are of one distribution: evidence and posterior mean agree."""
    process = FiniteWidthDGP(POINTS, (width,), noise=0.2, copies=2)
    gram, log_volume = matrices_of_two_points()
    log_prior = process.log_prior([gram]) + log_volume
    assert log_prior.logsumexp(0).item() == pytest.approx(0, abs=1e-3)
    log_posterior = log_prior + process.log_likelihood([gram], VALUES)
    evidence = log_posterior.logsumexp(0)
    mean = torch.einsum("n,nij->ij", log_posterior.softmax(0), gram)

    count = 100_000
    drawn = process.sample(count, generator=torch.Generator().manual_seed(5)).grams[0]
    log_weight = process.log_likelihood([drawn], VALUES)
    weight = log_weight.softmax(0)
    effective = 1 / weight.square().sum()
    assert effective > 20_000
    by_draws = log_weight.logsumexp(0) - math.log(count)
    assert by_draws.item() == pytest.approx(evidence.item(), abs=0.02)
    weighted = torch.einsum("n,nij->ij", weight, drawn)
    spread = torch.einsum("n,nij->ij", weight, (drawn - weighted).square()).sqrt()
    assert ((weighted - mean) / (spread / effective.sqrt())).abs().max() < 4
    assert (mean - process.recursive_grams()[0]).abs().max() > 5 * (spread / effective.sqrt()).max()


def test_the_posterior_of_two_layers_at_one_point():
    """Gram matrices are numbers, and both layers' densities those of the gamma distribution."""
    process = FiniteWidthDGP(POINTS[:1], (3, 5), noise=0.2, copies=4)
    u = torch.linspace(-12, 6, 400, dtype=torch.float64)
    first, second = torch.meshgrid(u.exp(), u.exp(), indexing="ij")
    log_volume = first.log() + second.log() + 2 * math.log(18 / 399)
    grams = [each[..., None, None] for each in (first, second)]
    log_prior = process.log_prior(grams)
    start = float(process.recursive_grams()[0])
    gamma = stats.gamma(1.5, scale=start / 1.5).logpdf(first.numpy())
    gamma += stats.gamma(2.5, scale=first.numpy() / 2.5).logpdf(second.numpy())
    np.testing.assert_allclose(log_prior.numpy(), gamma, rtol=1e-9, atol=1e-9)
    log_posterior = log_prior + log_volume + process.log_likelihood(grams, VALUES[:1])
    drawn = process.sample(100_000, generator=torch.Generator().manual_seed(6)).grams
    log_weight = process.log_likelihood(drawn, VALUES[:1])
    weight, density = log_weight.softmax(0), log_posterior.flatten().softmax(0)
    evidence = log_posterior.flatten().logsumexp(0)
    assert log_weight.logsumexp(0).item() - math.log(100_000) == pytest.approx(
        evidence.item(), abs=0.02
    )
    for layer in range(2):
        expected = (density * grams[layer].flatten()).sum()
        torch.testing.assert_close(
            (weight * drawn[layer].flatten()).sum(), expected, rtol=0.03, atol=0
        )


def test_the_mean_of_the_posterior_tends_to_the_optimum_as_well():
    machine = FullRankDKM.from_data(POINTS, VALUES, depth=1, nu=1.0, noise=0.2)
    machine.fit(steps=200, tolerance=1e-13)
    optimum = machine.grams()[1].detach()
    gram, log_volume = matrices_of_two_points(60, 2.5)
    far = []
    for copies in (20, 40, 80):
        process = FiniteWidthDGP.from_machine(machine, copies)
        weight = (process.log_joint([gram], VALUES) + log_volume).softmax(0)
        far.append(distance([torch.einsum("n,nij->ij", weight, gram)], [optimum]))
    assert far[0] / far[1] == pytest.approx(2, rel=0.2)
    assert far[1] / far[2] == pytest.approx(2, rel=0.2)


# -- what can go wrong -------------------------------------------------------------------------


def test_precision_and_shape():
    x, y = data()
    process = FiniteWidthDGP(x.float(), (6,)).half()
    grams = [positive_definite(4, 1).float()]
    assert process.log_joint(grams, y.float()).dtype == torch.float64
    assert process.sample().functions.dtype == torch.float64
    assert process.sample().functions.shape == (1, 4, 1)
    torch.testing.assert_close(
        process.log_joint(grams, y[:, 0]), process.log_joint(grams, y[:, :1])
    )
    assert "widths=(6,)" in repr(process)


def test_the_search_for_a_mode_leaves_no_gradients():
    x, y = data()
    process = FiniteWidthDGP(x, (20,), kernel=dkm.ArcCosine(weight_variance=1.5))
    with torch.no_grad():
        mode = process.mode(y)
    assert not mode[0].requires_grad
    parameters = list(process.parameters())
    assert len(parameters) == 2
    assert all(parameter.grad is None for parameter in parameters)
    slopes = torch.autograd.grad(process.log_joint(mode, y), parameters)
    assert all(slope.abs() > 1e-3 for slope in slopes)


def test_the_process_is_a_copy():
    machine, grams = moved_machine(dkm.ArcCosine(weight_variance=1.5))
    process = FiniteWidthDGP.from_machine(machine, 10)
    before = process.log_joint(grams, machine.targets)
    with torch.no_grad():
        for parameter in machine.parameters():
            parameter.add_(0.1)
    assert torch.equal(process.log_joint(grams, machine.targets), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": 5}, "widths must be a list or tuple.*got 5"),
        ({"widths": (5, 0)}, r"widths\[1\] must be a positive integer, got 0"),
        ({"widths": (2.5,)}, r"widths\[0\] must be a positive integer, got 2.5"),
        ({"widths": (5,), "copies": -1}, "copies must be a positive integer, got -1"),
        ({"widths": (5,), "noise": 0.0}, "noise must be a positive, finite number"),
        ({"widths": (5,), "kernel": "relu"}, r"kernel must be a convdkm\.Kernel, got str"),
        (
            {"widths": (5,), "kernel": [dkm.ArcCosine()]},
            "one for each of 1 layers and one for the outputs; got 1",
        ),
        ({"widths": (5,), "inputs": torch.ones(4)}, r"inputs must have shape \(N, any\)"),
        ({"widths": (5,), "inputs": torch.tensor([[math.nan]])}, "NaN or infinite"),
    ],
)
def test_options_that_make_no_process(options, message):
    with pytest.raises(dkm.InvalidInputError, match=message):
        FiniteWidthDGP(**{"inputs": data()[0], **options})


def test_gram_matrices_that_do_not_fit():
    x, y = data()
    process = FiniteWidthDGP(x, (6, 6))
    good = positive_definite(4, 1)
    for grams, message in (
        ([good], "list of 2 Gram matrices, one a layer; got 1"),
        ([good, good, good], "got 3; leave out G⁰"),
        (torch.stack([good, good]), "got Tensor"),
        ([good, good[:3]], r"layer 2 must have shape \(\.\.\., 4, 4\); got \(3, 4\)"),
        ([good.numpy(), good], "layer 1 must have shape.*ndarray"),
        ([good.long(), good], "layer 1 must be floating-point, got torch.int64"),
        ([good, good.tril()], "layer 2 is not symmetric"),
        ([good / 0, good], "layer 1 is not symmetric, or not finite"),
    ):
        with pytest.raises(dkm.InvalidInputError, match=message):
            process.log_prior(grams)
    indefinite = good - 2 * torch.eye(4)
    with pytest.raises(dkm.NumericalError, match="layer 'layer1': the Gram matrix G is not pos"):
        process.log_prior([indefinite, good])
    with pytest.raises(dkm.NumericalError, match=r"layer2.*\(1 of 2 matrices\)"):
        process.log_prior([torch.stack([good, good]), torch.stack([good, indefinite])])
    with pytest.raises(dkm.NumericalError, match=r"layer1.*kernel matrix K"):
        FiniteWidthDGP(torch.ones(4, 2), (6,)).log_prior([good])
    with pytest.raises(dkm.InvalidInputError, match=r"targets of shape \(4, 2\), got \(3, 2\)"):
        process.log_joint([good, good], y[:3])
    with pytest.raises(dkm.InvalidInputError, match="NaN or infinite"):
        process.log_joint([good, good], y / 0)
    with pytest.raises(dkm.InvalidInputError, match=r"start must be one \(P, P\) matrix a layer"):
        FiniteWidthDGP(x, (20,)).mode(y, start=[torch.stack([good, good])])


def test_layers_too_narrow_for_a_density_or_a_mode():
    x, y = data()
    good = positive_definite(4, 1)
    narrow = FiniteWidthDGP(x, (6, 3))
    with pytest.raises(dkm.InvalidInputError, match="layer 2 has 3 features for 4 points"):
        narrow.log_joint([good, good], y)
    with pytest.raises(dkm.InvalidInputError, match="Take at least 4 features"):
        narrow.log_constant  # noqa: B018
    assert torch.isfinite(narrow.log_likelihood(narrow.sample(3).grams, y)).all()
    with pytest.raises(dkm.InvalidInputError, match=r"width must be at least.*4; got 3"):
        wishart_log_density(good, good, 3)
    with pytest.raises(dkm.InvalidInputError, match=r"the mean must have shape \(\.\.\., 4, 4\)"):
        wishart_log_density(good, good[:2, :2], 5)
    with pytest.raises(dkm.InvalidInputError, match="the Gram matrix must have shape"):
        wishart_log_density(good[0], good, 5)
    with pytest.raises(dkm.InvalidInputError, match=r"more than P \+ 1 = 5 features"):
        FiniteWidthDGP(x, (20, 5)).mode(y)
    with pytest.raises(dkm.NumericalError, match=r"must exceed \[10, 5\], and are \[7, 7\]"):
        FiniteWidthDGP(x, (7, 7)).mode(y)
    with pytest.raises(dkm.NumericalError, match=r"Take more steps.*above the tolerance"):
        FiniteWidthDGP(x, (30, 30)).mode(y, steps=2)


def test_machines_without_a_process():
    x, y = data()
    with pytest.raises(dkm.InvalidInputError, match="nu = inf in layer 2 leaves no Wishart"):
        FiniteWidthDGP.from_machine(FullRankDKM.from_data(x, y, nu=(1.0, math.inf)), 10)
    with pytest.raises(dkm.InvalidInputError, match="nu = 0 in layer 1"):
        FiniteWidthDGP.from_machine(FullRankDKM.from_data(x, y, nu=0.0), 10)
    with pytest.raises(dkm.InvalidInputError, match=r"10 · 0\.25 .* let copies be a multiple of 4"):
        FiniteWidthDGP.from_machine(FullRankDKM.from_data(x, y, nu=0.25), 10)
    with pytest.raises(dkm.InvalidInputError, match="copies must be a positive integer"):
        FiniteWidthDGP.from_machine(FullRankDKM.from_data(x, y), 0)
    bare = FullRankDKM((4, 3), fully_connected_body(), dkm.Gaussian(1))
    with pytest.raises(dkm.NotInitialisedError, match="no training data"):
        FiniteWidthDGP.from_machine(bare, 10)
    classes = torch.tensor([0, 1] * len(x))[: len(x)]
    other = FullRankDKM.from_data(x, classes, likelihood=dkm.Categorical(2))
    with pytest.raises(dkm.InvalidInputError, match="a machine on vectors with Gaussian noise"):
        FiniteWidthDGP.from_machine(other, 10)
    with pytest.raises(dkm.InvalidInputError, match="machine must be a FullRankDKM, got str"):
        FiniteWidthDGP.from_machine("machine", 10)

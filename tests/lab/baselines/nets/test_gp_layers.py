"""Convolutional Gaussian processes against loops and against exact inference."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.gp_layers import (
    ConvolutionalKernel,
    DeepConvolutionalGP,
    Hidden,
    Inducing,
    bound,
    distinct_rows,
    patches,
    principal_components,
    scaled_rbf,
)

SHAPE = (2, 4, 5)
NOISE = 0.3
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def random(*shape):
    return torch.randn(shape, dtype=torch.float64)


def kernel_of(size=3, stride=1, lengthscale=2.0, variance=1.7):
    base = scaled_rbf(random(4, SHAPE[0] * size**2))
    base.base_kernel.lengthscale, base.outputscale = lengthscale, variance
    kernel = ConvolutionalKernel(base, SHAPE[1:], size, stride).double()
    with torch.no_grad():
        kernel.weights.copy_(1 + 0.5 * random(len(kernel.weights)))
    return kernel


def covariance(kernel, images):
    """k_f of every pair of images, ``(N, N)``."""
    found = kernel.patches(images).detach()
    pairs = kernel.base(found.flatten(0, 1)).to_dense().detach()
    weights = kernel.weights.detach() / len(kernel.weights)
    pairs = pairs.unflatten(1, found.shape[:2]).unflatten(0, found.shape[:2])
    return torch.einsum("npmq,p,q->nm", pairs, weights, weights)


def patches_by_hand(image, size, stride):
    _, height, width = image.shape
    rows = range(0, height - size + 1, stride)
    columns = range(0, width - size + 1, stride)
    return [image[:, r : r + size, c : c + size].flatten() for r in rows for c in columns]


def rbf(kernel, a, b):
    length = kernel.base.base_kernel.lengthscale.item()
    distance = float((a - b).square().sum())
    return kernel.base.outputscale.item() * math.exp(-distance / (2 * length**2))


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (2, 2), (1, 1)])
def test_the_kernel_is_the_double_loop_over_patches(size, stride):
    kernel = kernel_of(size, stride)
    images = random(3, *SHAPE)
    found = [patches_by_hand(image, size, stride) for image in images]
    w = kernel.weights.tolist()
    expected = random(3, 3)
    for i in range(3):
        for j in range(3):
            total = 0.0
            for p, a in enumerate(found[i]):
                for q, b in enumerate(found[j]):
                    total += w[p] * w[q] * rbf(kernel, a, b)
            expected[i, j] = total / len(w) ** 2
    torch.testing.assert_close(covariance(kernel, images), expected, **CLOSE)
    variance = kernel.variance(images).detach()
    torch.testing.assert_close(variance, expected.diagonal(), **CLOSE)
    z = random(4, SHAPE[0] * size**2)
    across = [
        [sum(w[p] * rbf(kernel, a, u) for p, a in enumerate(each)) / len(w) for each in found]
        for u in z
    ]
    expected = torch.tensor(across, dtype=torch.float64)
    torch.testing.assert_close(kernel.across(z, images).detach(), expected, **CLOSE)


def test_a_located_kernel_compares_places_too():
    images, stride = random(2, *SHAPE), 1
    found = [patches_by_hand(image, 2, stride) for image in images]
    where = [(r, c) for r in range(3) for c in range(4)]
    z = torch.cat([random(5, 8), torch.tensor([[0.0, 3.0]] * 5).double()], 1)
    base = scaled_rbf(z, located=True)
    kernel = ConvolutionalKernel(base, SHAPE[1:], 2, stride, located=True).double()
    near = kernel.base.base_kernel.kernels[1]
    near.lengthscale = 1.5
    length = kernel.base.base_kernel.kernels[0].lengthscale.item()

    def located(a, p, b, q):
        apart = (p[0] - q[0]) ** 2 + (p[1] - q[1]) ** 2
        difference = float((a - b).square().sum())
        return math.exp(-difference / (2 * length**2) - apart / (2 * 1.5**2))

    def total(left, right):
        pairs = [(a, p, b, q) for a, p in left for b, q in right]
        return sum(located(*pair) for pair in pairs) / len(pairs)

    sets = [list(zip(each, where, strict=True)) for each in found]
    expected = [[total(left, right) for right in sets] for left in sets]
    expected = torch.tensor(expected, dtype=torch.float64)
    # The lengths are set in single precision, and kept so.
    torch.testing.assert_close(covariance(kernel, images), expected, rtol=1e-6, atol=1e-6)
    variance = kernel.variance(images).detach()
    torch.testing.assert_close(variance, expected.diagonal(), rtol=1e-6, atol=1e-6)
    across = [[total([(u[:8], (0.0, 3.0))], each) for each in sets] for u in z]
    expected = torch.tensor(across, dtype=torch.float64)
    torch.testing.assert_close(kernel.across(z, images).detach(), expected, rtol=1e-6, atol=1e-6)


def regression(inducing, orthogonal=0):
    """A tiny regression with an exact marginal likelihood: model, images, targets, evidence."""
    kernel, images = kernel_of(), random(5, *SHAPE)
    targets = random(5)
    every = patches(images, 3, 1).flatten(0, 1)
    start = every if inducing == "all" else random(inducing, 18)
    model = DeepConvolutionalGP([], kernel, Inducing(start, 1, orthogonal)).double()
    noisy = covariance(kernel, images) + NOISE * torch.eye(5)
    evidence = MultivariateNormal(torch.zeros(5).double(), noisy).log_prob(targets)
    return model, images, targets, float(evidence)


@torch.no_grad()
def elbo(model, images, targets):
    """E_q[log N(y | f, noise)] in closed form, minus the KL divergence."""
    mean, variance = (moment[0] for moment in model(images))
    at_mean = Normal(mean, NOISE**0.5).log_prob(targets)
    return float((at_mean - variance / (2 * NOISE)).sum() - model.kl())


@torch.no_grad()
def make_optimal(model, images, targets):
    """The best q of a regression, in closed form (Titsias, 2009)."""
    across = model.kernel.across(model.inducing.patches, images)
    a = model.inducing.whitener(model.kernel.base) @ across
    precision = torch.eye(len(a), dtype=torch.float64) + a @ a.mT / NOISE
    posterior = torch.linalg.inv(precision)
    (block,) = model.inducing.blocks
    block.variational_mean.copy_((posterior @ a @ targets / NOISE).unsqueeze(0))
    block.chol_variational_covar.copy_(torch.linalg.cholesky(posterior).unsqueeze(0))
    return a


def test_the_elbo_is_below_the_evidence_whatever_q_is():
    for _ in range(5):
        model, images, targets, evidence = regression(4)
        with torch.no_grad():
            for block in model.inducing.blocks:
                block.variational_mean.copy_(0.5 * random(1, 4))
                block.chol_variational_covar.add_(0.3 * random(1, 4, 4))
        assert elbo(model, images, targets) < evidence


def test_the_best_elbo_is_the_bound_of_titsias():
    model, images, targets, evidence = regression(4)
    a = make_optimal(model, images, targets)
    exact = covariance(model.kernel, images)
    low_rank = a.mT @ a
    noisy = low_rank + NOISE * torch.eye(5)
    fit = MultivariateNormal(torch.zeros(5).double(), noisy).log_prob(targets)
    expected = float(fit - (exact - low_rank).diagonal().sum() / (2 * NOISE))
    found = elbo(model, images, targets)
    assert found == pytest.approx(expected, abs=1e-6)
    assert found < evidence - 1e-3


def test_the_best_elbo_is_the_evidence_where_every_patch_is_inducing():
    model, images, targets, evidence = regression("all")
    make_optimal(model, images, targets)
    assert elbo(model, images, targets) == pytest.approx(evidence, abs=1e-5)


def test_orthogonal_points_are_a_covariance_in_blocks():
    split, images, targets, evidence = regression(7, orthogonal=3)
    start = split.inducing.patches.detach()
    whole = DeepConvolutionalGP([], split.kernel, Inducing(start, 1)).double()
    first, second = split.inducing.blocks
    with torch.no_grad():
        for block in (first, second):
            block.variational_mean.normal_()
            block.chol_variational_covar.add_(0.2 * torch.randn_like(block.chol_variational_covar))
        (one,) = whole.inducing.blocks
        means = torch.cat([first.variational_mean, second.variational_mean], 1)
        one.variational_mean.copy_(means)
        factors = [block.chol_variational_covar[0].tril() for block in (first, second)]
        one.chol_variational_covar.copy_(torch.block_diag(*factors).unsqueeze(0))
    for ours, theirs in zip(split(images), whole(images), strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)
    torch.testing.assert_close(split.kl(), whole.inducing.kl(), **CLOSE)
    assert elbo(split, images, targets) < evidence


def test_the_posterior_is_that_of_conditioning():
    """Against the formulas of inducing points that are not whitened."""
    model, images, _, _ = regression(4)
    mean = random(1, 4)
    factor = (torch.eye(4) + 0.3 * random(4, 4)).tril()
    with torch.no_grad():
        (block,) = model.inducing.blocks
        block.variational_mean.copy_(mean)
        block.chol_variational_covar.copy_(factor.unsqueeze(0))
    z = model.inducing.patches.detach()
    inside = model.kernel.base(z).to_dense().detach()
    inside = inside + 1e-8 * inside[0, 0] * torch.eye(4)
    across = model.kernel.across(z, images).detach()
    lower = torch.linalg.cholesky(inside)
    u_mean, u_covariance = lower @ mean[0], lower @ factor @ factor.mT @ lower.mT
    weights = torch.linalg.solve(inside, across).mT
    prior = model.kernel.variance(images).detach()
    left = (weights @ (inside - u_covariance) @ weights.mT).diagonal()
    mean, variance = (moment[0].detach() for moment in model(images))
    torch.testing.assert_close(mean, weights @ u_mean, **CLOSE)
    torch.testing.assert_close(variance, prior - left, **CLOSE)


def test_the_kl_by_hand():
    inducing = Inducing(random(3, 2), 2).double()
    with torch.no_grad():
        inducing.blocks[0].variational_mean.copy_(random(2, 3))
        inducing.blocks[0].chol_variational_covar.add_(0.2 * random(2, 3, 3))
    expected = 0.0
    eye = torch.eye(3, dtype=torch.float64)
    prior = MultivariateNormal(torch.zeros(3).double(), eye)
    block = inducing.blocks[0]
    for mean, factor in zip(block.variational_mean, block.chol_variational_covar, strict=True):
        lower = factor.detach().tril()
        q = MultivariateNormal(mean.detach(), lower @ lower.mT)
        expected += float(torch.distributions.kl_divergence(q, prior))
    assert float(inducing.kl().detach()) == pytest.approx(expected)


class Known(DeepConvolutionalGP):
    """A model whose q(f) is given, and whose KL divergence is 12."""

    def __init__(self, mean, variance):
        torch.nn.Module.__init__(self)
        self.mean, self.variance = mean, variance

    def forward(self, images):
        return self.mean, self.variance

    def kl(self):
        return torch.tensor(12.0)


def test_as_many_images_as_classes_are_not_turned_round():
    logits = 3 * random(3, 3)
    labels = torch.tensor([0, 0, 1])
    model = Known(logits, torch.full_like(logits, 1e-9))
    expected = torch.log_softmax(logits.mT, 1)[torch.arange(3), labels].mean() - 12 / 100
    found = bound(model, random(3, *SHAPE), labels, 100, 10)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_samples_have_the_moments_of_the_functions():
    mean, variance = random(3, 4), 0.5 + torch.rand(3, 4, dtype=torch.float64)
    drawn = Known(mean, variance).samples(random(4, *SHAPE), 20_000)
    assert drawn.shape == (20_000, 4, 3)
    torch.testing.assert_close(drawn.mean(0), mean.mT, rtol=0, atol=0.06)
    torch.testing.assert_close(drawn.var(0), variance.mT, rtol=0.1, atol=0)


def hidden_layer(channels=2, deviation=1.0):
    start = random(5, 8)
    mean, centre = random(channels, 8), random(8)
    inducing = Inducing(start, channels, deviation=deviation)
    return Hidden(scaled_rbf(start), inducing, mean, centre, size=2, stride=1).double()


def test_a_hidden_layer_is_the_process_at_every_patch():
    layer, maps = hidden_layer(deviation=0.5), random(3, *SHAPE)
    with torch.no_grad():
        layer.inducing.blocks[0].variational_mean.normal_()
    mean, variance = (value.detach() for value in layer.moments(maps))
    assert mean.shape == variance.shape == (3, 2, 3, 4)
    patch = maps[1, :, 2:4, 1:3].flatten()
    z = layer.inducing.patches.detach()
    across = layer.base(z, patch.unsqueeze(0)).to_dense().detach()
    a = (layer.inducing.whitener(layer.base).detach() @ across)[:, 0]
    whitened = layer.inducing.blocks[0].variational_mean.detach()
    expected = layer.mean @ (patch - layer.centre) + whitened @ a
    torch.testing.assert_close(mean[1, :, 2, 1], expected, **CLOSE)
    left = layer.base.outputscale.item() - 0.75 * float(a @ a)
    torch.testing.assert_close(
        variance[1, :, 2, 1], torch.full((2,), left, dtype=torch.float64), **CLOSE
    )


def test_samples_of_a_hidden_layer_have_its_moments():
    layer, maps = hidden_layer(), random(1, *SHAPE)
    with torch.no_grad():
        mean, variance = layer.moments(maps)
        drawn = layer(maps.expand(4000, -1, -1, -1))
    tolerance = 5 * (variance / 4000).sqrt().max().item()
    assert float((drawn.mean(0) - mean[0]).abs().max()) < tolerance
    torch.testing.assert_close(drawn.var(0), variance[0], rtol=0.15, atol=1e-3)


def test_gradients_reach_every_parameter():
    kernel = ConvolutionalKernel(scaled_rbf(random(4, 8)), (3, 4), 2).double()
    inducing = Inducing(random(4, 8), 3).double()
    model = DeepConvolutionalGP([hidden_layer()], kernel, inducing)
    bound(model, random(6, *SHAPE), torch.arange(6) % 3, 6, 10).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name


def test_principal_components_have_variance_one():
    rows = random(200, 4) @ torch.diag(torch.tensor([3.0, 1.0, 0.5, 0.0]).double()) + 7
    weight, centre = principal_components(rows, 4)
    mapped = (rows - centre) @ weight.mT
    expected = torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(mapped.square().mean(0), expected, rtol=1e-6, atol=1e-6)


def test_patches_that_are_the_same_are_chosen_once():
    rows = torch.tensor([[0.0], [0.0], [1.0], [2.0]]).repeat(5, 1)
    generator = torch.Generator().manual_seed(0)
    assert sorted(distinct_rows(rows, 3, generator).flatten().tolist()) == [0, 1, 2]
    with pytest.raises(InvalidInputError, match=r"4 inducing patches need .* 3 were found"):
        distinct_rows(rows, 4, generator)


def test_patches_larger_than_the_image_are_refused():
    with pytest.raises(InvalidInputError, match="5×5 do not fit into images of 4×5"):
        ConvolutionalKernel(scaled_rbf(random(2, 50)), SHAPE[1:], 5)

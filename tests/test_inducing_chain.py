"""Hand-written backward passes of the inducing chain, against automatic differentiation."""

import torch

import convdkm as dkm
from convdkm.kernels.arccos import arccosine
from convdkm.layers.conv import mixed_inducing
from convdkm.numerics import cholesky, factorised, log_abs_det, whitened_kl


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def covariance(size=6):
    root = random(size, size + 3)
    return (root @ root.T / size).requires_grad_()


def gradient_of(result, inputs):
    weights = random(*result.shape, seed=5)
    return torch.autograd.grad((result * weights).sum(), inputs, retain_graph=True)


def test_a_factor_and_its_inverse_share_a_backward_pass():
    matrix = covariance()
    factor, inverse = factorised(matrix, "a matrix")
    expected = torch.linalg.cholesky(matrix)
    torch.testing.assert_close(factor, expected)
    torch.testing.assert_close(inverse, torch.linalg.inv(expected))
    for own, other in (
        (factor, expected),
        (inverse, torch.linalg.inv(expected)),
        (inverse.T @ factor, torch.linalg.inv(expected).T @ expected),
    ):
        (actual,), (truth,) = gradient_of(own, [matrix]), gradient_of(other, [matrix])
        torch.testing.assert_close(actual, truth, rtol=1e-9, atol=1e-11)
    assert not cholesky(matrix.detach(), "a matrix").requires_grad


def test_convolution_of_the_inducing_block():
    weight, ii = random(4, 6, 3, 3).requires_grad_(), covariance()
    by_place = weight.flatten(2).permute(2, 0, 1)
    expected = (by_place @ ii @ by_place.mT).mean(0)
    actual = mixed_inducing(weight, ii)
    torch.testing.assert_close(actual, expected)
    symmetric = (random(4, 4) + random(4, 4).T) / 2
    for own, other in zip(
        torch.autograd.grad((actual * symmetric).sum(), [weight, ii]),
        torch.autograd.grad((expected * symmetric).sum(), [weight, ii]),
        strict=True,
    ):
        torch.testing.assert_close(own, other)


def test_kernel_of_the_inducing_block():
    ii = covariance()
    kernel = dkm.ArcCosine(weight_variance=1.3, bias_variance=0.2)
    own = ii.diagonal()
    off = 1.3 * arccosine(ii, own[:, None], own[None, :]) + 0.2
    expected = torch.diagonal_scatter(off, 1.3 * own + 0.2)
    actual = kernel.plan(ii).ii
    torch.testing.assert_close(actual, expected)
    (by_own,), (by_other,) = gradient_of(actual, [ii]), gradient_of(expected, [ii])
    torch.testing.assert_close(by_own, by_other)


def test_the_kl_of_a_triangular_factor_needs_its_diagonal_only():
    factor = random(5, 5).tril()
    torch.testing.assert_close(log_abs_det(factor, triangular=True), log_abs_det(factor))
    torch.testing.assert_close(whitened_kl(factor, triangular=True), whitened_kl(factor))


def test_autocast_puts_the_products_in_bfloat16_and_keeps_the_chain_in_float64():
    model = dkm.resnet(1, 3, (8, 8), (1, 1), centre=True)
    images, labels = random(32, 1, 12, 12).float(), torch.arange(32) % 3
    model.initialise(images, labels, seed=0)
    exact = model.objective(images, labels, num_data=100).total
    with torch.autocast("cpu", dtype=torch.bfloat16):
        objective = model.objective(images, labels, num_data=100)
        assert model.body.plan(model.input.inducing_block()).ii.dtype == torch.float64
    (-objective.total).backward()
    assert objective.total.dtype == torch.float64
    assert abs(objective.total.item() - exact.item()) < 0.03 * abs(exact.item())
    assert objective.total.item() != exact.item()
    for name, parameter in model.named_parameters():
        assert bool(torch.isfinite(parameter.grad).all()), name
    folded = model.folded()
    plain = folded.predict(images).probs
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(folded.predict(images).probs, plain)

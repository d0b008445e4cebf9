"""Hand-written backward passes of the inducing chain, against automatic differentiation."""

import re
from pathlib import Path

import pytest
import torch

import convdkm as dkm
from convdkm.kernels.arccos import arccosine
from convdkm.numerics import cholesky, factorised, log_abs_det, whitened_kl
from convdkm.ops.inducing import learned_gram, mixed, noisy, normalised, weights_of_data


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
    actual = mixed(weight, ii)
    torch.testing.assert_close(actual, expected)
    symmetric = (random(4, 4) + random(4, 4).T) / 2
    for own, other in zip(
        torch.autograd.grad((actual * symmetric).sum(), [weight, ii]),
        torch.autograd.grad((expected * symmetric).sum(), [weight, ii]),
        strict=True,
    ):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize("variances", [(1.3, 0.2), (1.3, None), (None, 0.2), (None, None)])
def test_kernel_of_the_inducing_block(variances):
    ii = covariance()
    weight, bias = variances
    kernel = dkm.ArcCosine(weight_variance=weight, bias_variance=bias)
    own = ii.diagonal()
    slope = 1.0 if weight is None else kernel.weight_variance(ii)
    offset = 0.0 if bias is None else kernel.bias_variance(ii)
    off = slope * arccosine(ii, own[:, None], own[None, :]) + offset
    expected = torch.diagonal_scatter(off, slope * own + offset)
    actual = kernel.plan(ii).ii
    torch.testing.assert_close(actual, expected)
    inputs = [ii, *kernel.parameters()]
    for by_own, by_other in zip(
        gradient_of(actual, inputs), gradient_of(expected, inputs), strict=True
    ):
        torch.testing.assert_close(by_own, by_other)


@pytest.mark.parametrize("with_left", [True, False])
@pytest.mark.parametrize("with_right", [True, False])
@pytest.mark.parametrize("with_number", [True, False])
def test_weights_of_the_data(with_left, with_right, with_number):
    weight = random(4, 3, 2, 2).requires_grad_()
    left = random(5, 4, seed=1).requires_grad_() if with_left else None
    number = torch.tensor(1.3, dtype=torch.float64, requires_grad=True) if with_number else None
    right = random(3, 3, seed=2).requires_grad_() if with_right else None
    inputs = [x for x in (left, weight, right, number) if x is not None]
    expected = 0.7 * (weight if left is None else torch.einsum("rq,qpab->rpab", left, weight))
    if right is not None:
        expected = torch.einsum("rpab,pi->riab", expected, right)
    if number is not None:
        expected = expected * number
    for dtype, rtol in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        actual = weights_of_data(left, weight, right, number, 0.7, dtype)
        assert actual.dtype == dtype
        torch.testing.assert_close(actual, expected.to(dtype))
        for own, other in zip(
            gradient_of(actual, inputs), gradient_of(expected, inputs), strict=True
        ):
            assert own.dtype == torch.float64
            torch.testing.assert_close(own, other, rtol=rtol, atol=rtol)


def test_noise_of_the_inducing_block():
    ii = covariance()
    expected = torch.diagonal_scatter(ii, 1.5 * ii.diagonal() + 0.2)
    actual = noisy(ii, 0.5, 0.2)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient_of(actual, [ii]), gradient_of(expected, [ii]))


@pytest.mark.parametrize("by_mean", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_normalisation_of_the_inducing_block_by_one_number(by_mean, scaled):
    ii, log_scale = covariance(), torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    inputs = [ii, log_scale] if scaled else [ii]
    number = ii.new_ones(())
    if scaled:
        number = number * log_scale.exp()
    if by_mean:
        number = number * ii.diagonal().mean().rsqrt()
    result, scale = normalised(ii, log_scale if scaled else None, by_mean=by_mean)
    torch.testing.assert_close(scale, number.expand(()))
    torch.testing.assert_close(result, ii * number.square())
    for own, other in ((result, ii * number.square()), (result * scale, ii * number**3)):
        torch.testing.assert_close(gradient_of(own, inputs), gradient_of(other, inputs))


def test_normalisation_of_a_gram_that_is_zero():
    ii = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    result, scale = normalised(ii, None, by_mean=True)
    assert scale.item() == 0.0
    (gradient,) = gradient_of(result, [ii])
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("whitened", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_a_learned_gram_has_one_backward_pass(whitened, scaled, turned):
    kernel = covariance()
    free = (random(6, 6, seed=3) + 3 * torch.eye(6)).requires_grad_()
    log_scale = torch.tensor(0.4, dtype=torch.float64, requires_grad=True) if scaled else None
    learned = learned_gram(kernel, free, log_scale, divisor=1.7, whitened=whitened, turned=turned)

    lower = torch.linalg.cholesky(kernel)
    root = free.tril() / 1.7
    if log_scale is not None:
        root = root * (0.5 * log_scale).exp()
    factor = lower @ root if whitened else root
    inverse = torch.linalg.inv(lower)
    turn = torch.eye(6, dtype=torch.float64)
    if turned:
        turn = torch.linalg.eigh((inverse @ factor @ factor.T @ inverse.T).detach())[1].T
        rows = learned.spread @ learned.spread.T
        torch.testing.assert_close(rows, rows.diagonal().diag(), rtol=0, atol=1e-10)
        signs = (turn * (learned.whitening @ lower)).sum(1).detach().sign()
        turn = signs[:, None] * turn
    truth = (
        factor @ factor.T,
        turn @ inverse,
        turn @ inverse @ factor,
        factor,
        torch.distributions.kl_divergence(
            *(
                torch.distributions.MultivariateNormal(torch.zeros(6).double(), scale_tril=each)
                for each in (torch.linalg.cholesky(factor @ factor.T), lower)
            )
        ),
    )
    inputs = [x for x in (kernel, free, log_scale) if x is not None]
    for index, (own, other) in enumerate(zip(learned, truth, strict=True)):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-10)
        if own.requires_grad and not (index == 3 and not whitened):  # F does not depend on K
            actual = gradient_of(own, inputs)
            wanted = torch.autograd.grad(
                (other * random(*other.shape, seed=5)).sum(),
                inputs,
                retain_graph=True,
                allow_unused=True,
            )
            for one, two in zip(actual, wanted, strict=True):
                two = torch.zeros_like(one) if two is None else two  # noqa: PLW2901
                torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-9)
    together = sum((each * random(*each.shape, seed=8)).sum() for each in learned)
    apart = sum((each * random(*each.shape, seed=8)).sum() for each in truth)
    for one, two in zip(
        torch.autograd.grad(together, inputs), torch.autograd.grad(apart, inputs), strict=True
    ):
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-9)


def test_the_kl_of_a_triangular_factor_needs_its_diagonal_only():
    factor = random(5, 5).tril()
    torch.testing.assert_close(log_abs_det(factor, triangular=True), log_abs_det(factor))
    torch.testing.assert_close(whitened_kl(factor, triangular=True), whitened_kl(factor))


@pytest.fixture
def outcome():
    """The objective of a small machine and all its gradients, by what is in force when called."""
    options = {**dkm.PUBLISHED, "expectation": "nodes", "strides": (1, 2), "dtype": torch.float64}
    model = dkm.resnet(1, 3, (6, 8), (1, 1), centre=True, **options)
    images, labels = random(24, 1, 10, 10), torch.arange(24) % 3
    model.initialise(images, labels, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 0.1 * random(*parameter.shape))

    def run():
        model.zero_grad()
        total = model.objective(images, labels, num_data=100).total
        total.backward()
        return {"objective": total.detach()} | {
            name: parameter.grad.clone() for name, parameter in model.named_parameters()
        }

    return run


def require_same_outcome(actual, expected):
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_turning_a_learned_gram_changes_nothing(outcome, monkeypatch):
    turned = outcome()
    monkeypatch.setattr("convdkm.layers.gram_layer.LARGEST_TURNED", 0)
    require_same_outcome(outcome(), turned)


def test_numbers_may_be_tensors_as_they_are_on_gpus(outcome, monkeypatch):
    by_floats = outcome()
    for module in ("inducing", "predicted"):
        monkeypatch.setattr(f"convdkm.ops.{module}.scalar", lambda value: value)
    require_same_outcome(outcome(), by_floats)


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


def test_gradients_in_bfloat16_are_as_precise_as_its_numbers():
    """Also where a shortcut leads to more inducing points, so that its Gram is singular."""
    model = dkm.resnet(
        3,
        3,
        (8, 16),
        (1, 1),
        kernel="normalised-polynomial",
        polynomial=(1, 3),
        centre="layers",
        mixing_parameterisation="whitened",
        gram_parameterisation="whitened",
        gram_scale=100,
    )
    images, labels = random(96, 3, 12, 12).float(), torch.arange(96) % 3
    model.initialise(images, labels, seed=0)
    weights = {name: p for name, p in model.named_parameters() if name.endswith("conv.weight")}
    assert any("shortcut" in name for name in weights)
    found = []
    for lower in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=lower):
            total = model.objective(images, labels, num_data=100).total
        found.append(torch.autograd.grad(total, list(weights.values())))
    for name, exact, rounded in zip(weights, *found, strict=True):
        assert 1e-4 < (rounded - exact).norm() / exact.norm() < 0.05, name


def test_one_module_alone_factorises_matrices():
    root = Path(dkm.__file__).parent
    machine = [root / f"{name}.py" for name in ("gram", "head", "model", "architectures")]
    for folder in ("ops", "layers", "kernels", "likelihoods", "predicting"):
        machine += (root / folder).glob("*.py")
    found = re.compile(r"linalg\.(cholesky|eig|svd|qr|lu|inv|ldl)")
    assert [path.name for path in machine if found.search(path.read_text())] == []
    assert found.search((root / "numerics.py").read_text())

"""Derivatives of kernels: right where they exist, and finite everywhere."""

import pytest
import torch

import convdkm as dkm
from oracle.cases import DTYPES, KERNELS, generator_of, normal, random_gram

each_kernel = pytest.mark.parametrize("name", KERNELS)


class _Applied(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, cross, left, right):
        return self.kernel.of(cross, left, right), self.kernel.variance(left)


@each_kernel
def test_of_and_variance_have_the_right_derivatives(name):
    applied = _Applied(KERNELS[name]())
    points = normal(generator_of(name), 2, 6, 8)
    cross = (points[0] * points[1]).mean(1)
    numbers = (cross, *points.square().mean(2))
    parameters = dict(applied.named_parameters())

    def evaluate(cross, left, right, *values):
        given = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(applied, given, (cross, left, right))

    inputs = [v.detach().clone().requires_grad_() for v in (*numbers, *parameters.values())]
    assert torch.autograd.gradcheck(evaluate, inputs)


@each_kernel
def test_derivatives_through_the_blocks(name):
    kernel = KERNELS[name]()
    gram = random_gram(generator_of(name), 3, 2, (2,))
    root = torch.linalg.cholesky(gram.ii)

    def evaluate(root, it, tt):
        outgoing = kernel(dkm.Gram(root @ root.T, it, tt))
        return outgoing.ii, outgoing.it, outgoing.tt

    inputs = [block.requires_grad_() for block in (root, gram.it, gram.tt)]
    assert torch.autograd.gradcheck(evaluate, inputs)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_broadcast_derivatives_of_arc_cosine(order):
    """One point against several: the gradient of the one is summed over the several."""
    generator = generator_of("broadcast")
    cross = (0.3 * normal(generator, 4, 3)).requires_grad_()
    left = (1 + normal(generator, 4, 1).square()).requires_grad_()
    right = (1 + normal(generator, 1, 3).square()).requires_grad_()
    kernel = dkm.ArcCosine(order)
    assert torch.autograd.gradcheck(kernel.of, (cross, left, right))


def _degenerate(dtype):
    """(cross, left, right) of pairs of points where textbook formulas divide by zero."""
    info = torch.finfo(dtype)
    small, smallest = info.tiny**0.5, info.tiny
    pairs = {
        "identical": (1.0, 1.0, 1.0),
        "identical, long": (3.7, 3.7, 3.7),
        "parallel": (2.0, 1.0, 4.0),
        "opposite": (-1.0, 1.0, 1.0),
        "antiparallel": (-2.0, 4.0, 1.0),
        "both zero": (0.0, 0.0, 0.0),
        "left zero": (0.0, 0.0, 2.0),
        "right zero": (0.0, 2.0, 0.0),
        "orthogonal": (0.0, 1.0, 1.0),
        "more than identical": (1.0 + 4 * info.eps, 1.0, 1.0),
        "more than opposite": (-1.0 - 4 * info.eps, 1.0, 1.0),
        "nearly identical": (1.0 - info.eps, 1.0, 1.0),
        "tiny": (0.5 * small, small, small),
        "tiny and identical": (small, small, small),
        "tiny and opposite": (-small, small, small),
        "smallest and identical": (smallest, smallest, smallest),
        "left tiny": (small**0.5, small, 1.0),
        "left smallest": (0.0, smallest, 1.0),
    }
    return {name: torch.tensor(pair, dtype=dtype) for name, pair in pairs.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_kernel
def test_derivatives_of_degenerate_pairs_are_finite(name, dtype):
    kernel = KERNELS[name]()
    broken = []
    for pair, numbers in _degenerate(dtype).items():
        kernel.zero_grad()
        cross, left, right = (number.clone().requires_grad_() for number in numbers)
        values = torch.stack([kernel.of(cross, left, right), kernel.variance(left)])
        values.sum().backward()
        inputs = (cross, left, right, *kernel.parameters())
        found = [values, *(tensor.grad for tensor in inputs if tensor.grad is not None)]
        assert cross.grad is not None
        if not all(torch.isfinite(tensor).all() for tensor in found):
            broken.append(pair)
    assert broken == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_kernel
def test_derivatives_through_degenerate_blocks_are_finite(name, dtype):
    """Inducing points that coincide with images, are opposite to them, or are zero."""
    kernel = KERNELS[name]()
    inducing = normal(generator_of(name), 4, 6)
    inducing[3] = inducing[2]
    images = torch.stack([inducing[0], -inducing[1], 0 * inducing[0], inducing[2]])[:, :, None]
    gram = dkm.Gram.from_features(inducing, images.to(dtype))
    inputs = [block.requires_grad_() for block in (gram.ii, gram.it, gram.tt)]
    outgoing = kernel(dkm.Gram(*inputs))
    total = outgoing.ii.sum() + outgoing.it.sum() + outgoing.tt.sum()
    total.backward()
    assert torch.isfinite(total)
    for tensor in (*inputs, *kernel.parameters()):
        assert tensor.grad is None or torch.isfinite(tensor.grad).all()


def test_derivatives_of_order_one_at_coinciding_points_are_the_limits():
    """∂k/∂c = 1 and ∂k/∂a = 0 where the angle vanishes; 0 and 0 where it is π."""
    for cosine, slope in ((1.0, 1.0), (-1.0, 0.0)):
        cross = torch.tensor(cosine, dtype=torch.float64, requires_grad=True)
        left, right = (torch.ones((), dtype=torch.float64, requires_grad=True) for _ in range(2))
        dkm.ArcCosine(1).of(cross, left, right).backward()
        assert float(cross.grad) == pytest.approx(slope, abs=1e-12)
        assert float(left.grad) == pytest.approx(0, abs=1e-12)
        assert float(right.grad) == pytest.approx(0, abs=1e-12)


# -- the derivative by the covariance, for neural tangent kernels ------------------------------


class _Quadratic(dkm.Kernel):
    """Not written out: (G_xy + 1)²."""

    def of(self, cross, left, right):
        return (cross + 1) ** 2 + 0 * left * right

    def variance(self, own):
        return (own + 1) ** 2


STEPS = ("ArcCosine(0)", "ArcCosine(0, weight, bias)", "nested arithmetic")  # flat, by convention
WITH_TANGENT = [name for name in KERNELS if name not in (*STEPS, "Matern(0.5)")]


@pytest.mark.parametrize("name", [*WITH_TANGENT, "not written out"])
def test_tangent_is_the_derivative_by_the_covariance(name):
    kernel = _Quadratic() if name == "not written out" else KERNELS[name]()
    points = normal(generator_of(name), 6, 8)
    gram = points @ points.T / 8
    own = gram.diagonal().clone()
    left, right = own[:, None], own[None, :]
    cross = gram.diagonal_scatter(0.3 * own).requires_grad_()
    (expected,) = torch.autograd.grad(kernel.of(cross, left, right).sum(), cross)
    actual = kernel.tangent(cross, left, right)
    assert not actual.requires_grad
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (dkm.ArcCosine(), lambda own: own**0),
        (dkm.ArcCosine(2), lambda own: 4 * own),
        (dkm.ArcCosine(weight_variance=0.5), lambda own: own**0 / 2),
        (dkm.LeakyReLU(0.3), lambda own: own**0),
        (dkm.ArcSine(), lambda own: 4 / torch.pi * (1 + 4 * own) ** -0.5),
        (dkm.Sine(1.3), lambda own: 1.3**2 * (1 + torch.exp(-2 * 1.3**2 * own)) / 2),
        (dkm.SquaredExponential(0.7), lambda own: own**0 / 0.49),
        (dkm.Matern(1.5), lambda own: 3 * own**0),
        (dkm.Matern(2.5), lambda own: 5 / 3 * own**0),
        (dkm.ArcCosine() * dkm.Linear(), lambda own: 2 * own),
        (2 * dkm.ArcCosine() + dkm.LeakyReLU(0.3), lambda own: 3 * own**0),
        (dkm.ArcCosine(0), lambda own: 0 * own),
    ],
)
def test_tangent_of_a_point_with_itself_is_exact(kernel, expected):
    """Rounding makes the cosine of a point with itself 1 − 2e-16, which is an angle of 2e-8."""
    own = 10 ** torch.linspace(-3, 3, 50, dtype=torch.float64)
    torch.testing.assert_close(kernel.tangent(own, own, own), expected(own), rtol=1e-12, atol=0)


def test_matern_one_half_has_no_tangent():
    own = torch.ones(1)
    with pytest.raises(dkm.InvalidInputError, match=r"smoothness 0\.5 have no derivative"):
        dkm.Matern(0.5).tangent(own, own, own)


@pytest.mark.parametrize("options", [{"frequency": 0.0}, {"phase": float("inf")}])
def test_bad_options_of_the_sine(options):
    with pytest.raises(dkm.InvalidInputError, match=r"^(frequency must|the phase of)"):
        dkm.Sine(**options)

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

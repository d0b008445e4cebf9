"""What is recorded is played: the same operations on other numbers, and none that is not needed."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from convdkm.ops.scalars import as_tensor, exponential, inverse_root, scalar
from convdkm.runtime.memory import peak_memory
from convdkm.runtime.program import recorded
from convdkm.runtime.tape import NotRecordableError, Tape, leaf, tape_under_way


def both(function, *inputs, seed=1):
    """Results of a function and of its record on other numbers than those recorded."""
    drawn = torch.Generator().manual_seed(seed)
    others = [torch.rand(each.shape, dtype=each.dtype, generator=drawn) for each in inputs]
    program = recorded(lambda: function(*inputs), inputs)
    return function(*[each.clone() for each in others]), program(*others)


def require_same(function, *inputs):
    expected, actual = both(function, *inputs)
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)
        assert not one.requires_grad
    return actual


def matrices(*shapes):
    return [torch.rand(shape, dtype=torch.float64) for shape in shapes]


def test_products_sums_and_views():
    def function(a, b):
        c = (a @ b).T[1:]
        return [c.sum(0), c.diagonal(), torch.cat([c, 2 * c]), a.reshape(-1).exp()]

    require_same(function, *matrices((3, 4), (4, 3)))


def test_what_is_changed_in_place():
    def function(a):
        b = a.clone()
        b.diagonal().mul_(3).add_(1)
        b[0] = 7
        view = b.view(-1)
        b.add_(a)
        return [b, view * 2, view.view(3, 3) + 1]

    require_same(function, *matrices((3, 3)))


def test_inputs_are_changed_as_the_function_changes_them():
    running, value = torch.ones(3), torch.rand(3)

    def function():
        running.lerp_(value, 0.1)
        return [running + 0]

    program = recorded(function, [running, value])
    first, second = torch.zeros(3), torch.ones(3)
    (result,) = program(first, second)
    torch.testing.assert_close(first, torch.full((3,), 0.1))
    assert torch.equal(result, first)


def test_both_passes_are_recorded():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 3 * grad * x * x

    def function(a, b):
        a, b = a.requires_grad_(), b.requires_grad_()
        loss = (Cube.apply(a @ b).sin() * torch.linalg.cholesky(b @ b.T + torch.eye(3))).sum()
        return [loss.detach(), *torch.autograd.grad(loss, (a, b))]

    require_same(function, *matrices((3, 3), (3, 3)))


def test_numbers_are_read_anew():
    def function(a):
        mean = scalar(a.mean())
        number = 2 * inverse_root(mean) - exponential(scalar(a.sum()) / 10) * 0.1 + 1 / mean
        number = -(1 - number) + 0.5 - mean * mean
        b = a * number
        b.diagonal().sub_(number)
        b.add_(number * 2)
        return [b, as_tensor(number, a), number * a, a - number, 1 / (number * a)]

    with torch.no_grad():
        require_same(function, *matrices((3, 3)))


def test_a_leaf_may_look_at_numbers():
    class Pair(NamedTuple):
        low: Tensor
        high: Tensor

    seen = []

    @leaf
    def sorted_out(pair, names, *, least):
        seen.append((pair.low.sum().item() > least, names, tape_under_way()))
        return (pair.low.clamp(min=least), pair.high + 1) if seen[-1][0] else (pair.high, pair.low)

    def function(a, b):
        return list(sorted_out(Pair(a, b), ("a", None, 2.5), least=0.1))

    require_same(function, *matrices((2,), (2,)))
    assert len(seen) == 3
    assert all(names == ("a", None, 2.5) for _, names, _ in seen)


def test_a_leaf_that_fails_fails_when_played():
    @leaf
    def checked(a):
        if a.min().item() < 0:
            raise ValueError("negative")
        return a.sqrt()

    start = torch.ones(2)
    program = recorded(lambda: [checked(start)], [start])
    with pytest.raises(ValueError, match="negative"):
        program(-start)


def test_constants_stay_what_they_are():
    table = torch.arange(4.0)
    start = torch.ones(4)
    program = recorded(lambda: [start * table, torch.full((2,), float("inf")) + 1], [start])
    product, infinite = program(2 * start)
    assert torch.equal(product, 2 * table)
    assert torch.isinf(infinite).all()


def test_random_numbers_are_fresh():
    start = torch.zeros(3)
    program = recorded(lambda: [start + torch.randn(3)], [start])
    torch.manual_seed(5)
    (first,), (second,) = program(start), program(start)
    torch.manual_seed(5)
    assert torch.equal(first, torch.randn(3))
    assert not torch.equal(first, second)


def test_what_is_not_needed_is_not_done():
    calls = []

    @leaf
    def counted(a):
        calls.append(a)
        return a + 1

    start = torch.ones(3)

    def function():
        counted(start)
        return [start.detach().view(3) * 2]

    program = recorded(function, [start])
    assert torch.equal(program(start)[0], 2 * start)
    assert len(calls) == 1


def test_memory_is_given_back_as_early_as_in_the_function():
    start = torch.ones(1 << 18)

    def function():
        total = start
        for _ in range(20):
            total = (total + 1).view(2, -1).reshape(-1).sqrt()
        return [total]

    program = recorded(function, [start])
    plain = peak_memory(function)
    assert plain > start.nbytes
    assert peak_memory(lambda: program(start)) <= plain


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda a: [a * a.sum().item()], "depends on a number"),
        (lambda a: [a if a.sum() > 0 else -a], "depends on a number"),
        (lambda a: [a if scalar(a.sum()) > 0 else -a], "depends on a number"),
        (lambda a: [a * float(scalar(a.sum()))], "depends on a number"),
        (lambda a: [a.requires_grad_() * scalar(a.detach().sum())], "derivative"),
        (lambda a: [leaf(torch.sin)(a.requires_grad_())], "derivative"),
        (lambda a: [a + torch.rand(3, generator=torch.Generator())], "random generator"),
    ],
)
def test_what_cannot_be_played_again_is_refused(function, reason):
    start = torch.ones(3)
    with pytest.raises(NotRecordableError, match=reason):
        recorded(lambda: function(start), [start])
    assert tape_under_way() is None
    assert scalar(start.sum()) == 3.0


def test_a_number_is_of_its_tape_only():
    start = torch.ones(())
    with Tape([start]):
        number = scalar(start)
    with pytest.raises(NotRecordableError, match="over"):
        start * number

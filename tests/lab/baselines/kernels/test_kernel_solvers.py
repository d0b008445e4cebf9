"""Conjugate gradients equal Cholesky; leaving one out equals doing it."""

import pytest
import torch

from convdkm.errors import InvalidInputError, NumericalError
from convdkm.lab.baselines.kernels.solvers import (
    GRID,
    PivotedCholesky,
    conjugate_gradients,
    leave_one_out,
    solve_directly,
)


@pytest.fixture
def kernel():
    points = torch.randn(40, 3, dtype=torch.float64)
    return torch.exp(-0.5 * torch.cdist(points, points).square())


@pytest.fixture
def targets():
    return torch.eye(4, dtype=torch.float64)[torch.arange(40) % 4] - 0.25


def test_cholesky_solves(kernel, targets):
    before = kernel.clone()
    solution = solve_directly(kernel, targets, 0.1)
    system = kernel + 0.1 * torch.eye(40, dtype=torch.float64)
    torch.testing.assert_close(system @ solution, targets)
    assert torch.equal(kernel, before)


@pytest.mark.parametrize("rank", [0, 1, 10, 100])
@pytest.mark.parametrize("ridge", [1e-3, 1.0])
def test_conjugate_gradients_equal_cholesky(kernel, targets, rank, ridge):
    found = conjugate_gradients(kernel, targets, ridge, rank=rank, tolerance=1e-11)
    expected = solve_directly(kernel, targets, ridge)
    torch.testing.assert_close(found.solution, expected, rtol=1e-7, atol=1e-8)
    left = targets - kernel @ found.solution - ridge * found.solution
    assert float((left.norm(dim=0) / targets.norm(dim=0)).max()) < 1e-9
    assert found.residual <= 1e-11


def test_the_preconditioner_saves_steps(kernel, targets):
    steps = [
        conjugate_gradients(kernel, targets, 1e-3, rank=rank, tolerance=1e-8).iterations
        for rank in (0, 10, 30)
    ]
    assert steps[0] > steps[1] > steps[2], steps
    assert steps[2] < steps[0] / 2


def test_a_full_preconditioner_is_the_inverse(kernel, targets):
    inverse = PivotedCholesky(kernel, 40, 0.1)
    torch.testing.assert_close(inverse(targets), solve_directly(kernel, targets, 0.1))


def test_pivots_stop_where_nothing_is_left(targets):
    thin = torch.randn(40, 3, dtype=torch.float64)
    preconditioner = PivotedCholesky(thin @ thin.T, 20, 0.1)
    assert preconditioner.columns.shape == (40, 3)
    torch.testing.assert_close(preconditioner(targets), solve_directly(thin @ thin.T, targets, 0.1))


def test_an_output_without_targets_is_zero(kernel, targets):
    targets[:, 2] = 0
    found = conjugate_gradients(kernel, targets, 0.1, tolerance=1e-10)
    assert float(found.solution[:, 2].abs().max()) == 0
    expected = solve_directly(kernel, targets, 0.1)
    torch.testing.assert_close(found.solution, expected, rtol=1e-7, atol=1e-8)


def test_too_few_steps_are_an_error(kernel, targets):
    with pytest.raises(NumericalError, match=r"residual of .* in 2 steps, not 1e-10; allow more"):
        conjugate_gradients(kernel, targets, 1e-4, rank=0, tolerance=1e-10, iterations=2)
    with pytest.raises(InvalidInputError, match="a positive ridge, got 0"):
        conjugate_gradients(kernel, targets, 0.0)


def test_steps_are_told(kernel, targets):
    lines = []
    conjugate_gradients(kernel, targets, 1e-3, rank=0, tolerance=1e-10, tell=lines.append)
    assert lines[0].startswith("conjugate gradients: 10 steps, residual ")


def brute_leave_one_out(kernel, targets, ridge):
    missed = []
    for left_out in range(len(kernel)):
        rest = [i for i in range(len(kernel)) if i != left_out]
        system = kernel[rest][:, rest] + ridge * torch.eye(len(rest), dtype=torch.float64)
        weights = torch.linalg.solve(system, targets[rest])
        missed.append(targets[left_out] - kernel[left_out, rest] @ weights)
    return torch.stack(missed)


def test_leaving_one_out_equals_brute_force(kernel, targets):
    ridges = [1e-3, 0.03, 0.3, 3.0]
    found = leave_one_out(kernel, targets, ridges)
    brute = [brute_leave_one_out(kernel, targets, ridge) for ridge in ridges]
    errors = [float(missed.square().mean()) for missed in brute]
    assert found.errors == pytest.approx(errors, rel=1e-8)
    best = errors.index(min(errors))
    assert (found.best, found.ridges) == (best, tuple(ridges))
    torch.testing.assert_close(found.residuals, brute[best], rtol=1e-7, atol=1e-9)
    right = [
        float(((targets - missed).argmax(1) == targets.argmax(1)).double().mean())
        for missed in brute
    ]
    assert found.accuracies == pytest.approx(right)


def test_a_ridge_at_the_edge_of_the_grid_is_said_to_be(kernel, targets):
    noise = torch.randn(40, 1, dtype=torch.float64)
    assert leave_one_out(kernel, noise, [1e-4, 1e-3]).at_edge
    assert not leave_one_out(kernel, targets, [1.0]).at_edge


def test_what_cannot_be_left_out(kernel, targets):
    with pytest.raises(InvalidInputError, match="at least two points"):
        leave_one_out(kernel[:1, :1], targets[:1], [1.0])
    for ridges in ([], [0.0], [1.0, -1.0]):
        with pytest.raises(InvalidInputError, match="ridges must be positive"):
            leave_one_out(kernel, targets, ridges)


def test_the_grid_is_of_two_a_decade():
    assert GRID[0] == pytest.approx(1e-6)
    assert GRID[-1] == pytest.approx(10)
    assert len(GRID) == 15

"""Floating-point operations are counted right, and counting leaves no trace."""

import copy

import pytest
import torch

import convdkm as dkm
from convdkm.config import Recipe
from convdkm.training import MemorySink, fit
from convdkm.training.cost import flops, line, step_cost


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (lambda x: x @ x, 2 * 6**3),
        (lambda x: torch.zeros(6, 6).addmm_(x, x), 2 * 6**3),
        (lambda x: x @ x[0], 2 * 6**2),
        (lambda x: torch.linalg.cholesky(x @ x.T + 6 * torch.eye(6)), 2 * 6**3 + 6**3 / 3 + 72),
        (lambda x: torch.linalg.solve_triangular(x, torch.ones(6, 4), upper=False), 6**2 * 4),
        (torch.linalg.eigh, 9 * 6**3),
        (lambda x: torch.linalg.inv(x + 6 * torch.eye(6)), 2 * 6**3 + 72),
        (lambda x: x.exp().mul_(2), 72),
        (lambda x: x.sum(), 36),
        (lambda x: x.T.contiguous().clone().view(4, 9), 0),
        (
            lambda x: torch.nn.functional.conv2d(x.view(1, 1, 6, 6), torch.ones(5, 1, 3, 3)),
            2 * 5 * 9 * 16,
        ),
    ],
    ids=[
        *("mm", "addmm", "mv", "cholesky", "triangular", "eigh"),
        *("inverse", "elementwise", "sum", "moves", "conv"),
    ],
)
def test_operations(action, expected):
    assert flops(lambda: action(torch.randn(6, 6))) == pytest.approx(expected)


def machine():
    torch.manual_seed(0)
    model = dkm.resnet(3, 10, (4, 6), (1, 1), gram_parameterisation="whitened")
    return model.initialise(torch.randn(8, 3, 8, 8), torch.arange(8), seed=0)


@pytest.mark.parametrize("options", [{}, {"optimiser": "muon"}], ids=["adam", "muon"])
def test_a_step_is_a_line_in_the_images(options):
    """Counted at a third size, it is what two small steps foretell."""
    model, recipe = machine(), Recipe(batch_size=16, **options)
    images, labels = torch.randn(16, 3, 8, 8), torch.arange(16) % 10
    before = copy.deepcopy(model.state_dict())
    random = torch.random.get_rng_state()
    cost = step_cost(model, recipe, images[:4], labels[:4])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), random)

    def forward(count):
        model.zero_grad()
        model.objective(images[:count], labels[:count], num_data=16).total.backward()

    alone = line(forward)
    assert flops(lambda: forward(16)) == pytest.approx(alone.at(16), rel=1e-9)
    assert cost.per_image == pytest.approx(alone.per_image, rel=0.02)
    assert cost.fixed > alone.fixed


def test_micro_batches_repeat_the_inducing_chain():
    model, images, labels = machine(), torch.randn(4, 3, 8, 8), torch.arange(4)
    whole = step_cost(model, Recipe(batch_size=16), images, labels)
    parts = step_cost(model, Recipe(batch_size=16, micro_batch=4), images, labels)
    assert 1.5 * whole.fixed < parts.fixed < 4 * whole.fixed
    assert parts.per_image == whole.per_image


def test_a_run_says_what_it_cost():
    options = {"train_size": 60, "test_size": 20, "epochs": 1, "inducing": (6, 8)}
    short, long = (
        fit("quick", "digits", **options | more, sinks=[MemorySink()]).metrics
        for more in ({}, {"epochs": 3, "compile": True})
    )
    assert long["flops"] == pytest.approx(3 * short["flops"])
    assert short["flops"] > 1e7
    assert 0 < short["cpu_seconds"] < long["cpu_seconds"]

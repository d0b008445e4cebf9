"""Floating-point operations are counted right, and counting leaves no trace."""

import copy
import json

import pytest
import torch

import convdkm as dkm
from convdkm.config import Recipe
from convdkm.training import MemorySink, cost, fit, resume
from convdkm.training.cost import flops, line, step_cost
from convdkm.training.world import World
from run_figures import without_clocks


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


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_strided_and_padded_convolutions(groups, transposed):
    """The convolution and each of its gradients: what it has weights for, at every place."""
    maps = torch.randn(3, 4, 9, 9, requires_grad=True)
    shape = (4, 6 // groups, 3, 3) if transposed else (6, 4 // groups, 3, 3)
    weight = torch.randn(shape, requires_grad=True)
    convolve = torch.conv_transpose2d if transposed else torch.conv2d

    def applied(of):
        result = convolve(of, weight, stride=2, padding=1, groups=groups)
        return result, 2 * (of if transposed else result).numel() * weight[0].numel()

    result, once = applied(maps)
    assert flops(lambda: applied(maps)) == once
    ones = torch.ones_like(result)
    assert flops(lambda: result.backward(ones)) == 2 * once
    result, once = applied(maps.detach())  # the first convolution has one gradient
    assert flops(lambda: result.backward(ones)) - weight.numel() == once  # which is accumulated


def test_a_network_counts_the_same_in_inference_mode():
    network = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3)).eval()
    images, count = torch.randn(4, 2, 6, 6), 4 * 3 * 4 * 4
    expected = count * (2 * 2 * 9 + 2)
    assert flops(lambda: network(images)) == expected
    with torch.inference_mode():
        assert flops(lambda: network(images)) == expected
    assert flops(lambda: network.train()(images)) == count * (2 * 2 * 9 + 6) + 1  # batches seen


def machine(**options):
    torch.manual_seed(0)
    model = dkm.resnet(3, 10, (4, 6), (1, 1), gram_parameterisation="whitened", **options)
    return model.initialise(torch.randn(8, 3, 8, 8), torch.arange(8), seed=0)


@pytest.mark.parametrize(
    "options",
    [{}, {"optimiser": "muon"}, {"head_natural_rate": 0.1}],
    ids=["adam", "muon", "natural steps of the head"],
)
def test_a_step_is_a_line_in_the_images(options):
    """Counted at a third size, it is what two small steps foretell."""
    model, recipe = machine(), Recipe(batch_size=16, **options)
    images, labels = torch.randn(16, 3, 8, 8), torch.arange(16) % 10
    before = copy.deepcopy(model.state_dict())
    random = torch.random.get_rng_state()
    found = step_cost(model, recipe, images[:4], labels[:4])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), random)

    def forward(count):
        model.zero_grad()
        model.objective(images[:count], labels[:count], num_data=16).total.backward()

    alone = line(forward)
    assert flops(lambda: forward(16)) == pytest.approx(alone.at(16), rel=1e-9)
    assert found.per_image == pytest.approx(alone.per_image, rel=0.02)
    assert found.fixed > alone.fixed


def test_micro_batches_repeat_the_inducing_chain():
    model, images, labels = machine(), torch.randn(4, 3, 8, 8), torch.arange(4)
    whole = step_cost(model, Recipe(batch_size=16), images, labels)
    parts = step_cost(model, Recipe(batch_size=16, micro_batch=4), images, labels)
    assert 1.5 * whole.fixed < parts.fixed < 4 * whole.fixed
    assert parts.per_image == whole.per_image


def test_what_is_worked_out_again_counts_again_and_so_do_samples():
    images, labels, recipe = torch.randn(4, 3, 8, 8), torch.arange(4), Recipe(batch_size=16)
    model = machine()
    plain = step_cost(model, recipe, images, labels)
    model.checkpointing = True
    again = step_cost(model, recipe, images, labels)
    assert 1.2 * plain.per_image < again.per_image < 1.5 * plain.per_image
    sampled = step_cost(machine(gram_samples=0.25, gram_noise=0.1), recipe, images, labels)
    assert plain.fixed < sampled.fixed
    assert sampled.per_image == pytest.approx(plain.per_image, rel=0.01)


def test_a_run_says_what_it_cost():
    options = {"train_size": 60, "test_size": 20, "epochs": 1, "inducing": (6, 8)}
    short, long = (
        fit("quick", "digits", **options | more, sinks=[MemorySink()]).metrics
        for more in ({}, {"epochs": 3, "compile": True})
    )
    assert long["flops"] == pytest.approx(3 * short["flops"])
    assert short["flops"] > 1e7
    assert 0 < short["cpu_seconds"] < long["cpu_seconds"]


TINY = {"train_size": 60, "test_size": 20, "epochs": 2, "inducing": (6, 8), "batch_size": 25}


def test_a_resumed_run_cost_as_much(tmp_path):
    whole = fit("quick", "digits", sinks=[MemorySink()], **TINY).metrics
    asked = iter([False, True])
    fit("quick", "digits", folder=tmp_path, stop=lambda: next(asked), **TINY)
    rest = resume(tmp_path, sinks=[MemorySink()]).metrics
    assert rest["flops"] == whole["flops"]
    assert rest["cpu_seconds"] > 0


def test_a_count_that_fails_takes_nothing_from_the_run(tmp_path, monkeypatch):
    def failing(*_):
        assert "test_accuracy" in json.loads((tmp_path / "metrics.json").read_text())
        raise RuntimeError("no memory is left")

    monkeypatch.setattr(cost, "step_cost", failing)
    sink = MemorySink()
    metrics = fit("quick", "digits", folder=tmp_path, sinks=[sink], **TINY).metrics
    assert metrics == json.loads((tmp_path / "metrics.json").read_text())
    assert "flops" not in metrics
    assert ("warning", "FLOPs were not counted: no memory is left") in sink.messages


def test_the_time_of_processors_is_that_of_all_processes(monkeypatch):
    alone = fit("quick", "digits", sinks=[MemorySink()], **TINY).metrics
    monkeypatch.setattr(World, "sum", lambda _, values: [1000 + value for value in values])
    shared = fit("quick", "digits", sinks=[MemorySink()], **TINY).metrics
    assert alone["cpu_seconds"] < 1000 < shared["cpu_seconds"]


@pytest.mark.parametrize("options", [{}, {"compile": True}], ids=["plain", "compiled"])
def test_small_images_early_cost_less(options, tmp_path):
    """And a run that was stopped among them goes on as if it had not been."""
    options = {**TINY, "epochs": 4, **options}
    whole = fit("quick", "digits", sinks=[MemorySink()], **options).metrics
    sink, early = MemorySink(), {**options, "early_scale": 0.75, "early_share": 0.5}
    half = fit("quick", "digits", sinks=[sink], **early).metrics
    assert 0.75 * whole["flops"] < half["flops"] < 0.85 * whole["flops"]
    stopped = MemorySink()
    stop = {"sinks": [stopped], "stop": lambda: len(stopped.steps) == 1}
    fit("quick", "digits", folder=tmp_path, **stop, **early)
    assert without_clocks(resume(tmp_path).metrics) == without_clocks(half)

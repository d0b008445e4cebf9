"""Tests of the summary of a machine."""

import pytest
import torch

import convdkm as dkm
from convdkm.insight.summary import summarise


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = dkm.resnet(2, 3, (4, 6), (1, 2), nu=(1, 2, 3, 4, 5, 6, 7), centre=True, jitter=1e-4)
    images = torch.randn(20, 2, 8, 6)
    return model.initialise(images, torch.arange(20) % 3)


@pytest.fixture(scope="module")
def rows(model):
    return summarise(model, (2, 8, 6))


def test_every_parameter_is_counted_once(model, rows):
    assert sum(row.parameters for row in rows) == sum(p.numel() for p in model.parameters())


def test_rows_are_named_as_in_the_model(model, rows):
    modules = dict(model.named_modules())
    assert all(type(modules[row.name]).__name__ == row.kind for row in rows)
    assert len({row.name for row in rows}) == len(rows)


def test_divergences_and_weights_are_those_of_the_objective(model, rows):
    with torch.no_grad():
        objective = model.eval().objective(
            torch.randn(4, 2, 8, 6), torch.tensor([0, 1, 2, 0]), num_data=20
        )
    of_layers = {row.name: row for row in rows if row.kind == "GramLayer"}
    assert {name.removeprefix("body.") for name in of_layers} == {
        name.removeprefix("body.") for name in objective.kl
    }
    for name, term in objective.kl.items():
        row = of_layers[f"body.{name.removeprefix('body.')}"]
        assert row.kl == pytest.approx(float(term.value), rel=1e-6)
        assert row.nu == term.nu
    assert [row.nu for row in of_layers.values()] == [1, 2, 3, 4, 5, 6, 7]
    head = next(row for row in rows if row.name == "head")
    assert head.kl == pytest.approx(float(objective.head_kl), rel=1e-6)


def test_inducing_points_and_space_are_those_of_the_outgoing_gram(rows):
    by_name = {row.name: row for row in rows}
    assert (by_name["input"].inducing, by_name["input"].space) == (4, (8, 6))
    assert by_name["body.stage2.block1"].inducing == 6
    assert by_name["body.stage2.block1"].space == (4, 3)
    assert by_name["body.pool"].space == ()
    assert by_name["likelihood"].inducing == 0


def test_layers_are_grouped_by_the_block_they_belong_to(rows):
    blocks = dict.fromkeys(row.block for row in rows)
    assert list(blocks) == ["", "stem", "stage1.block1", "stage2.block1", "stage2.block2"]
    parts = [row.part for row in rows if row.block == "stage2.block1"]
    assert parts[:4] == ["first.kernel.0", "first.kernel.1", "first.kernel.2", "first.conv"]
    assert parts[-4:] == ["shortcut.conv", "shortcut.centre", "shortcut.norm", "skip"]
    alone = [row.part for row in rows if not row.block]
    assert alone == ["input", "pool", "centre", "norm", "head", "likelihood"]


def test_the_model_is_left_as_it_was(model):
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    summarise(model, (2, 8, 6))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_machine_of_another_make():
    body = dkm.Sequential(dkm.ArcCosine(), dkm.GramLayer(5), dkm.Skip(dkm.Norm()))
    model = dkm.DeepKernelMachine(dkm.VectorInput(3, 5), body, dkm.GPHead(5, 2), dkm.Categorical(2))
    model.initialise(torch.randn(9, 3), torch.arange(9) % 2)
    rows = summarise(model, (3,))
    assert [(row.block, row.part) for row in rows] == [
        ("", "input"),
        ("", "0"),
        ("", "1"),
        ("2", ""),
        ("2", "skip"),
        ("", "head"),
        ("", "likelihood"),
    ]

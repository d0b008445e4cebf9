"""A predictor as one compiled program predicts what its steps predict, or works without it."""

import copy
import logging
import pickle

import pytest
import torch
from folded_machines import machine
from torch._dynamo.utils import counters

import convdkm as dkm
from convdkm.runtime.elementwise import compiled_engine

COMPILES = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def needs_compiler():
    if compiled_engine() is None:
        pytest.skip("nothing compiles here")


def close(actual, expected):
    for name, value in vars(expected).items():
        if value is not None:
            torch.testing.assert_close(getattr(actual, name), value, rtol=1e-5, atol=1e-5)


def graphs():
    return counters["stats"]["unique_graphs"]


@pytest.fixture
def refusing(monkeypatch):
    """``torch.compile`` gives functions that cannot be compiled; how often they were called."""
    calls = []

    def compile_nothing(function, **options):
        def call(*given):
            calls.append(given)
            raise RuntimeError("no compiler here\nsecond line")

        return call

    monkeypatch.setattr(torch, "compile", compile_nothing)
    return calls


@COMPILES
def test_one_program_for_all_batches_and_for_machines_of_the_same_layers():
    needs_compiler()
    model, images = machine("small published")
    steps, predictor = model.folded(), model.folded().use_compiled()
    before = graphs()
    close(predictor.predict(images), steps.predict(images))
    assert predictor.program_works
    assert graphs() == before + 1, "there is one graph, without a break"
    for count in (2, 3, len(images) - 1):
        close(predictor.predict(images[:count]), steps.predict(images[:count]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)
    moved = model.folded().use_compiled()
    close(moved.predict(images), model.folded().predict(images))
    assert moved.program_works
    assert graphs() == before + 1, "weights and numbers are given to the program"


@pytest.mark.slow
@COMPILES
@pytest.mark.parametrize("name", ["small centred", "small 3-D", "gaussian", "linear+mix"])
def test_programs_of_other_machines(name):
    needs_compiler()
    torch._dynamo.reset()
    model, images = machine(name)
    predictor = model.folded().use_compiled()
    close(predictor.predict(images), model.folded().predict(images))
    assert predictor.program_works


def test_what_does_not_compile_works_step_by_step_and_says_so_once(refusing, caplog):
    model, images = machine("plain")
    predictor = model.folded().use_compiled()
    with caplog.at_level(logging.WARNING, logger="convdkm"):
        close(predictor.predict(images), model.folded().predict(images))
        close(predictor.predict(images), model.folded().predict(images))
    assert len(refusing) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the predictor is not compiled, and works step by step: no compiler here"
    ]


def test_an_error_of_the_caller_is_the_usual_one_and_ends_nothing(refusing):
    model, images = machine("norm batch location")
    predictor = model.folded().use_compiled()
    with pytest.raises(dkm.GramError, match=r"body\.stem.*another size"):
        predictor.predict(torch.nn.functional.pad(images, (0, 1)))
    assert predictor.program_works


def test_single_images_take_the_steps(refusing):
    model, images = machine("plain")
    predictor = model.folded().use_compiled()
    close(predictor.predict(images[:1]), model.folded().predict(images[:1]))
    assert not refusing


def test_a_gradient_is_refused_as_by_the_steps(refusing):
    model, images = machine("plain")
    images.requires_grad_()
    for predictor in (model.folded(), model.folded().use_compiled()):
        with pytest.raises(RuntimeError, match="differentiation"):
            predictor(images)


def test_parts_that_exist_in_python_only_are_not_compiled(refusing):
    model = dkm.resnet(2, 3, (5,), (1,), statistics="batch")
    images = torch.randn(9, 2, 6, 5)
    predictor = model.initialise(images, seed=0).folded().use_compiled()
    close(predictor.predict(images), model.predict(images))
    assert not refusing


def test_a_program_is_left_behind_where_tensors_are_made_anew(refusing):
    model, images = machine("plain")
    predictor = model.folded().use_compiled()
    predictor.predict(images)
    assert predictor.program_works is not None
    for other in (copy.deepcopy(predictor), pickle.loads(pickle.dumps(predictor))):
        assert other.program_works is None
        close(other.predict(images), predictor.predict(images))
    assert predictor.double().program_works is None
    assert not predictor.use_compiled(False).predict(images).mean.isnan().any()
    assert predictor.program_works is None


def test_numbers_that_training_changes_are_tensors():
    """Else they would be part of the code that is compiled, and of no other predictor."""
    model, images = machine("published")
    before, one = model.folded().description(), dict(model.folded().named_buffers())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)
    predictor = model.folded()
    assert predictor.description() == before
    names = [name.rpartition(".")[2] for name, each in predictor.named_buffers() if not each.ndim]
    assert {"factor", "weight", "short_factor"} <= set(names)
    moved = [name for name, each in predictor.named_buffers() if not torch.equal(each, one[name])]
    assert any(name.endswith(".factor") for name in moved)
    assert predictor.predict(images).mean.isfinite().all()

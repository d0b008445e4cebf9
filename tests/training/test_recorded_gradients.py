"""Steps that are played from a record are the steps that would have been taken."""

import copy
import logging

import pytest
import torch
from counted_passes import passes_of

import convdkm as dkm
from convdkm.errors import NotFiniteError, NumericalError
from convdkm.layers.base import Layer
from convdkm.ops.base import IdentityPlan
from convdkm.runtime.elementwise import compiled_engine
from convdkm.runtime.memory import peak_memory
from convdkm.training.gradients import RecordedGradients
from predicting.folded_machines import MACHINES

COUNT = 6
ROUNDED = 1e-9
"""Relative to the largest number of a gradient, in float64, where sums have another order."""


def machine(name, dtype=torch.float32):
    torch.manual_seed(1)
    model, shape = MACHINES[name](dtype)
    inputs = torch.randn(20, *shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    return model.initialise(inputs, seed=0).train(), shape


def batch(model, shape, number, count=COUNT, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 + number)
    inputs = torch.randn(count, *shape, generator=generator).to(dtype)
    likelihood = model.likelihood
    if isinstance(likelihood, dkm.Categorical) or likelihood.classes:
        return inputs, torch.randint(likelihood.num_outputs, (count,), generator=generator)
    return inputs, torch.randn(count, likelihood.num_outputs, generator=generator)


def eager(model, inputs, targets):
    objective = model.objective(inputs, targets, num_data=50)
    (-objective.total).backward()
    return objective


def state(model, objective):
    """All that a step leaves behind."""
    found = {f"grad {name}": p.grad for name, p in model.named_parameters()}
    found |= {f"buffer {name}": buffer for name, buffer in model.named_buffers()}
    found |= {f"kl {name}": term.value for name, term in objective.kl.items()}
    found |= {f"nu {name}": torch.tensor(term.nu) for name, term in objective.kl.items()}
    marginals = objective.marginals
    found |= {"total": objective.total, "head": objective.head_kl, "mean": marginals.mean}
    found |= {"variance": marginals.variance, "data": objective.expected_log_likelihood}
    return {
        name: None if value is None else value.detach().clone() for name, value in found.items()
    }


def move(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=1e-3)


def require_same_steps(model, batches, *, tolerance=0.0):
    """Step by step, with parameters that move in between; the sizes of batches that were played."""
    other = copy.deepcopy(model)
    gradients, played = RecordedGradients(other, num_data=50), set()
    for number, (inputs, targets) in enumerate(batches):
        model.zero_grad()
        other.zero_grad()
        torch.manual_seed(number)  # of sampled Gram matrices
        expected = state(model, eager(model, inputs, targets))
        torch.manual_seed(number)
        objective, passes = passes_of(other, gradients, inputs, targets)
        played |= set() if passes else {len(inputs)}
        actual = state(other, objective)
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            if value is None:
                assert actual[name] is None, name
            elif not (tolerance and value.is_floating_point() and value.numel()):
                assert torch.equal(actual[name], value), name
            else:
                assert (actual[name] - value).abs().max() <= tolerance * value.abs().max(), name
        move(model)
        move(other)
    return played


@pytest.mark.parametrize("name", [name for name in MACHINES if name != "product"])
def test_every_machine_takes_the_same_steps(name):
    model, shape = machine(name)
    assert require_same_steps(model, [batch(model, shape, n) for n in range(4)]) == {COUNT}


def test_gradients_that_are_added_up_in_another_order():
    model, shape = machine("product", torch.float64)
    batches = [batch(model, shape, n, dtype=torch.float64) for n in range(4)]
    assert require_same_steps(model, batches, tolerance=ROUNDED) == {COUNT}


@pytest.mark.parametrize("name", ["published", "centred", "whitened", "Matern"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_in_double_precision_and_with_checkpointing(name, checkpointing):
    model, shape = machine(name, torch.float64)
    model.checkpointing = checkpointing
    batches = [batch(model, shape, n, dtype=torch.float64) for n in range(4)]
    assert require_same_steps(model, batches) == {COUNT}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_functions_are_played():
    if compiled_engine() is None:
        pytest.skip("nothing compiles here")
    model, shape = machine("published", torch.float64)
    model.compile_elementwise()
    batches = [batch(model, shape, n, dtype=torch.float64) for n in range(4)]
    assert require_same_steps(model, batches, tolerance=ROUNDED) == {COUNT}


def test_samples_are_drawn_anew():
    model, shape = machine("plain")
    model.likelihood = dkm.Categorical(3, expectation="monte-carlo", samples=5)
    gradients = RecordedGradients(model, num_data=50)
    inputs, targets = batch(model, shape, 0)
    for _ in range(2):
        gradients(inputs, targets)
    before = copy.deepcopy(model)
    torch.manual_seed(7)
    drawn = [gradients(inputs, targets).total.item() for _ in range(2)]
    assert drawn[0] != drawn[1]
    torch.manual_seed(7)
    assert eager(before, inputs, targets).total.item() == drawn[0]


def test_a_shorter_batch_has_a_record_of_its_own():
    model, shape = machine("published")
    sizes = (6, 6, 6, 4, 6, 4, 6, 4)
    batches = [batch(model, shape, n, count) for n, count in enumerate(sizes)]
    assert require_same_steps(model, batches[:5]) == {6}
    assert require_same_steps(model, batches) == {6, 4}


def test_what_the_layers_are_set_to_is_followed():
    model, shape = machine("published")
    gradients = RecordedGradients(model, num_data=50, most=3)
    layer = next(each for each in model.modules() if isinstance(each, dkm.GramLayer))
    made = []
    for nu in (0.01, 2.0, 0.5, 0.3, 2.0):
        layer.nu = nu
        for _ in range(3):
            inputs, targets = batch(model, shape, 1)
            expected = copy.deepcopy(model)
            total = eager(expected, inputs, targets).total
            objective, passes = passes_of(model, gradients, inputs, targets)
            assert torch.equal(objective.total, total)
            made.append(passes)
    first, fourth, again = [1, 1, 0], [1, 1, 1], [0, 0, 0]
    assert made == [*first, *first, *first, *fourth, *again]


def test_layers_and_parameters_may_be_replaced():
    model, shape = machine("published")
    gradients = RecordedGradients(model, num_data=50)
    inputs, targets = batch(model, shape, 1)
    for turn in range(3):
        made = []
        for _ in range(3):
            total = eager(copy.deepcopy(model), inputs, targets).total
            model.zero_grad()
            objective, passes = passes_of(model, gradients, inputs, targets)
            assert torch.equal(objective.total, total)
            made.append(passes)
        assert (made[0], made[2]) == (1, 0)  # what is new is recorded, and played
        if turn == 0:
            layer = next(each for each in model.modules() if isinstance(each, dkm.Conv))
            layer.weight = torch.nn.Parameter(2 * layer.weight.detach())
        else:
            model.head = copy.deepcopy(model.head)


def test_only_what_is_learned_has_gradients():
    model, shape = machine("published")
    frozen = [p for name, p in model.named_parameters() if "weight" in name]
    for parameter in frozen:
        parameter.requires_grad_(False)
    assert require_same_steps(model, [batch(model, shape, n) for n in range(3)]) == {COUNT}
    assert frozen
    assert all(parameter.grad is None for parameter in frozen)


def test_gradients_add_up():
    model, shape = machine("published")
    gradients = RecordedGradients(model, num_data=50)
    inputs, targets = batch(model, shape, 0)
    model.eval()  # so that running averages stay
    for _ in range(2):
        gradients(inputs, targets)
    model.zero_grad()
    gradients(inputs, targets)
    once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    gradients(inputs, targets)
    twice = [p.grad for p in model.parameters() if p.grad is not None]
    torch.testing.assert_close(twice, [2 * each for each in once], rtol=0, atol=0)
    owners = {each.untyped_storage().data_ptr() for each in twice}
    assert len(owners) == len(twice)


def test_a_failure_says_where_it_is():
    model, shape = machine("published")
    gradients = RecordedGradients(model, num_data=50)
    inputs, targets = batch(model, shape, 0)
    for _ in range(3):
        gradients(inputs, targets)
    layer = next(each for each in model.modules() if isinstance(each, dkm.Conv))
    with torch.no_grad():
        layer.weight.fill_(torch.nan)
    with pytest.raises(NumericalError, match=r"body\."):
        gradients(inputs, targets)


def test_an_objective_that_is_not_finite_leaves_no_gradients():
    model, shape = machine("only the head")
    gradients = RecordedGradients(model, num_data=50)
    inputs, targets = batch(model, shape, 0)
    for _ in range(2):
        gradients(inputs, targets)
    model.zero_grad()
    with torch.no_grad():
        model.head.mean.fill_(torch.inf)
    with pytest.raises(NotFiniteError, match=r"head\.mean"):
        gradients(inputs, targets)
    assert all(p.grad is None for p in model.parameters())


def test_bad_input_is_refused_as_always():
    model, shape = machine("published")
    gradients = RecordedGradients(model, num_data=50)
    inputs, targets = batch(model, shape, 0)
    for _ in range(3):
        gradients(inputs, targets)
    with pytest.raises(dkm.errors.InvalidInputError, match="NaN"):
        gradients(torch.full_like(inputs, torch.nan), targets)
    fresh = RecordedGradients(model, num_data=50)
    fresh(inputs, targets)
    with pytest.raises(dkm.errors.InvalidInputError, match="NaN"):
        fresh(torch.full_like(inputs, torch.nan), targets)
    assert [passes_of(model, fresh, inputs, targets)[1] for _ in range(2)] == [1, 0]
    with pytest.raises(dkm.errors.InvalidInputError, match="between 0 and 2"):
        gradients(torch.zeros_like(inputs), targets + 3)


class Looking(Layer):
    """A layer whose work depends on a number."""

    def plan(self, ii):
        return IdentityPlan(ii * (2 if float(ii.detach().sum()) > 0 else 1))


def test_a_layer_that_looks_at_numbers_goes_as_always(caplog):
    model, shape = machine("plain")
    model.body = dkm.Sequential(Looking(), model.body)
    with caplog.at_level(logging.WARNING):
        assert require_same_steps(model, [batch(model, shape, n) for n in range(4)]) == set()
    assert len(caplog.records) == 1
    assert "not recorded" in caplog.text
    assert "a number that it reads" in caplog.text


@pytest.mark.parametrize("name", ["plain", "centred", "published"])
def test_steps_in_automatic_precision_are_played(name):
    model, shape = machine(name)
    with torch.autocast("cpu", torch.bfloat16):
        assert require_same_steps(model, [batch(model, shape, n) for n in range(4)]) == {COUNT}


def test_a_record_is_for_one_precision():
    model, shape = machine("plain")
    gradients = RecordedGradients(model, num_data=50)
    totals = []
    for mixed in (False, False, True, True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            model.zero_grad()
            objective, _ = passes_of(model, gradients, *batch(model, shape, 0))
        totals.append(objective.total.item())
    assert totals[0] == totals[1] == totals[4]
    assert totals[2] == totals[3] == totals[5]
    assert totals[0] != totals[2]


def test_it_takes_no_more_memory():
    model = dkm.resnet(1, 3, (8, 8), (2, 2))
    inputs = torch.randn(32, 1, 24, 24)
    targets = torch.arange(32) % 3
    model.initialise(inputs, targets, seed=0)
    gradients = RecordedGradients(model, num_data=50)
    for _ in range(2):
        gradients(inputs, targets)
    model.zero_grad()
    played = peak_memory(lambda: gradients(inputs, targets))
    model.zero_grad()
    assert played <= 1.02 * peak_memory(lambda: eager(model, inputs, targets))

"""Rates by kind of parameter, width transfer, Muon, natural steps and lookahead."""

import copy
import math

import pytest
import torch

import convdkm as dkm
from convdkm.config import Recipe
from convdkm.training.batches import Batches
from convdkm.training.checkpoint import CheckpointError, CheckpointStore
from convdkm.training.loop import Trainer
from convdkm.training.optimiser import Optimiser, kinds, orthogonalised

IMAGES = torch.randn(24, 1, 6, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(24) % 3


def a_machine(**options):
    return dkm.resnet(1, 3, (4, 6), (1, 1), nu=0.1, **options).initialise(IMAGES, LABELS, seed=0)


def trainer_of(machine, store=None, **options):
    recipe = Recipe(**{"epochs": 3, "batch_size": 12, "schedule": "constant"} | options)
    return Trainer(machine, Batches.of(recipe, IMAGES, LABELS), recipe, store=store)


def first_changes(**options):
    """How far each parameter moves in the first step of a training."""
    trainer = trainer_of(a_machine(), **options)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.step(*next(trainer.batches.epoch(0)))
    moved = zip(kinds(trainer.model).items(), before, strict=True)
    return [(kind, parameter.detach() - old) for (parameter, kind), old in moved]


def same(first, second):
    ours, theirs = first.state_dict(), second.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_every_parameter_has_a_kind():
    machine = a_machine(top="linear+mix")
    named = {p: name for name, p in machine.named_parameters()}
    found = {named[p]: kind for p, kind in kinds(machine).items()}
    assert list(found) == [name for name, _ in machine.named_parameters()]
    for name, kind in found.items():
        last = name.split(".")[-1]
        if name.startswith("head."):
            assert kind == "head"
        elif name.startswith("input."):
            assert kind == "input"
        else:
            assert kind == {"weight": "mixing", "factor": "gram"}.get(last, "rest"), name
    assert set(found.values()) == {"mixing", "gram", "head", "input", "rest"}


@pytest.mark.parametrize("kind", ["mixing", "gram", "head", "input"])
def test_a_factor_multiplies_the_first_step_of_its_kind_alone(kind):
    for (found, moved), (_, plain) in zip(
        first_changes(**{f"{kind}_rate": 0.25}), first_changes(), strict=True
    ):
        torch.testing.assert_close(moved, plain * (0.25 if found == kind else 1), rtol=1e-9, atol=0)


def test_noise_has_a_rate_of_its_own():
    machine = dkm.fully_connected(2, 1, inducing=4, learn_scales=True)
    found = {name: kinds(machine)[p] for name, p in machine.named_parameters()}
    assert [name for name, kind in found.items() if kind == "noise"] == ["likelihood.log_noise"]
    assert found["input.log_scales"] == "rest"
    optimiser = Optimiser(machine, Recipe(noise_rate=3.0), num_data=5)
    optimiser.set_rate(0.1)
    rates = {p: group["lr"] for group in optimiser.param_groups for p in group["params"]}
    assert rates.pop(machine.likelihood.log_noise) == pytest.approx(0.3)
    assert set(rates.values()) == {0.1}


@pytest.mark.parametrize(("transfer", "power"), [("root", 0.5), ("linear", 1.0)])
def test_width_transfer_is_a_power_of_the_incoming_width(transfer, power):
    for (kind, moved), (_, plain) in zip(
        first_changes(width_transfer=transfer), first_changes(), strict=True
    ):
        factor = (16 / moved.shape[1]) ** power if kind == "mixing" else 1.0
        torch.testing.assert_close(moved, factor * plain, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("shape", [(8, 8), (6, 30), (30, 6)])
def test_orthogonalised_matrices_have_nearly_equal_singular_values(shape):
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    singular = torch.linalg.svdvals(orthogonalised(matrix))
    assert singular.min() > 0.6
    assert singular.max() < 1.3
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    inside = left.T.float() @ orthogonalised(matrix) @ right.T.float()
    torch.testing.assert_close(inside, torch.diag(inside.diagonal()), atol=1e-4, rtol=0)
    assert orthogonalised(torch.zeros(shape)).eq(0).all()


def test_muon_turns_mixing_weights_by_its_rate_and_keeps_their_norm():
    trainer = trainer_of(a_machine(), optimiser="muon", muon_rate=0.1)
    found = kinds(trainer.model)
    before = {p: p.detach().clone() for p in found}
    plain = dict(enumerate(first_changes()))
    trainer.step(*next(trainer.batches.epoch(0)))
    for place, (parameter, kind) in enumerate(found.items()):
        old, new = before[parameter], parameter.detach()
        if kind != "mixing":
            assert torch.equal(new - old, plain[place][1])
            continue
        assert math.isclose(new.norm(), old.norm(), rel_tol=1e-12)
        along = (new * old).sum() / old.norm() ** 2  # of the step, what is beside the weights
        update = (new / along - old).flatten(1)
        assert 0.07 < torch.atan(update.norm() / old.norm()) < 0.13
        rows = orthogonalised(parameter.grad.flatten(1)).double()
        step = old.flatten(1) - 0.1 * rows * old.norm() / rows.norm()
        torch.testing.assert_close(
            new.flatten(1), step * old.norm() / step.norm(), rtol=1e-5, atol=1e-6
        )


def test_muon_follows_the_schedule_and_learns():
    trainer = trainer_of(
        a_machine(), epochs=15, optimiser="muon", muon_rate=0.05, schedule="cosine"
    )
    first = trainer.gradients(*next(trainer.batches.epoch(0))).values["objective"]
    trainer.run()
    assert trainer.gradients(IMAGES, LABELS).values["objective"] > first + 0.1
    rates = {group["method"] == "muon": group["lr"] for group in trainer.optimiser.param_groups}
    assert math.isclose(rates[True] / rates[False], 0.05 / 0.01)


def learned_grams(machine):
    """What every Gram layer learns, relative to the kernel where it is learned so."""
    layers = [each for each in machine.modules() if isinstance(each, dkm.GramLayer)]
    return [(each.factor @ each.factor.T).detach() / each.divisor**2 for each in layers]


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_natural_steps_change_grams_by_their_rate_whatever_the_factor(parameterisation):
    options = {"gram_parameterisation": parameterisation}
    changed = []
    for more in ({}, {"full_gram": True}, {"divide_gram": True}):
        machine = a_machine(**options, **more)
        before = learned_grams(machine)
        trainer = trainer_of(machine, natural_rate=0.1)
        trainer.step(*next(trainer.batches.epoch(0)))
        after = learned_grams(machine)
        for old, new in zip(before, after, strict=True):
            inverse = torch.linalg.inv(torch.linalg.cholesky(old))
            relative = inverse @ new @ inverse.T - torch.eye(len(old), dtype=old.dtype)
            assert 0.09 < relative.square().sum().div(len(old)).sqrt() < 0.11
        changed.append(after)
        factors = [p for p, kind in kinds(machine).items() if kind == "gram"]
        assert all(torch.equal(each, each.tril()) for each in factors)  # the start was triangular
    for others in changed[1:]:
        for ours, theirs in zip(changed[0], others, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)  # data is float32


def test_natural_steps_learn_and_are_not_taken_where_there_are_none():
    trainer = trainer_of(a_machine(), epochs=15, natural_rate=0.05, schedule="cosine")
    first = trainer.gradients(*next(trainer.batches.epoch(0))).values["objective"]
    trainer.run()
    assert trainer.gradients(IMAGES, LABELS).values["objective"] > first + 0.1
    methods = {group["method"] for group in trainer_of(a_machine()).optimiser.param_groups}
    assert methods == {"adam"}


def a_head_to_train(head, likelihood, rate, head_kl="sum"):
    """A machine in float64 that starts at the prior, its Gram, and a trainer of its head alone."""
    body = a_machine(dtype=torch.float64).requires_grad_(False)
    machine = dkm.DeepKernelMachine(
        body.input, body.body, head, likelihood, head_kl=head_kl, dtype=torch.float64
    )
    gram = machine.train().gram(IMAGES)
    head.condition(gram, lambda marginals: marginals.mean.sum(1), steps=0)
    return gram, trainer_of(machine, batch_size=24, head_natural_rate=rate)


@pytest.mark.parametrize("head_kl", ["sum", "mean"])
@pytest.mark.parametrize("covariance", ["shared", "per-output"])
@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_a_whole_natural_step_of_the_head_is_exact_for_gaussians(
    parameterisation, covariance, head_kl
):
    head = dkm.GPHead(6, 3, covariance=covariance, parameterisation=parameterisation)
    likelihood = dkm.Gaussian(3, noise=0.1, learn_noise=False, classes=True)
    _, trainer = a_head_to_train(head, likelihood, 1.0, head_kl)
    with torch.no_grad():  # another start
        head.factor.mul_(1.1)
        head.mean.add_(torch.arange(6) - 2.5)
    trainer.step(IMAGES, LABELS)
    before = [p.grad.abs().max() for p in head.parameters()]
    trainer.gradients(IMAGES, LABELS)
    for parameter, first in zip(head.parameters(), before, strict=True):
        assert parameter.grad.abs().max() < 1e-10 * first


@pytest.mark.parametrize("parameterisation", ["direct", "whitened"])
def test_natural_steps_of_the_head_are_those_of_conditioning(parameterisation):
    head = dkm.GPHead(6, 3, parameterisation=parameterisation)
    likelihood = dkm.Categorical(3)
    gram, trainer = a_head_to_train(head, likelihood, 0.5)
    conditioned = copy.deepcopy(head)
    conditioned.condition(gram, lambda each: likelihood.expected_log_prob(each, LABELS), steps=3)
    for _ in range(3):
        trainer.step(IMAGES, LABELS)
    torch.testing.assert_close(head.mean, conditioned.mean, rtol=1e-9, atol=1e-9)
    ours, theirs = (each.factor @ each.factor.T for each in (head, conditioned))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("covariance", ["shared", "per-output"])
def test_a_natural_step_of_the_head_at_most_doubles_a_covariance(covariance):
    machine = a_machine(head_covariance=covariance)
    head, recipe = machine.head, Recipe(head_natural_rate=1.0)
    optimiser = Optimiser(machine, recipe, num_data=1000)
    start = head.factor.detach().clone()
    head.factor.grad = -1e3 * torch.linalg.inv(start).mT
    optimiser.step()
    torch.testing.assert_close(head.factor @ head.factor.mT, 2 * start @ start.mT)


def test_natural_steps_of_the_head_follow_the_schedule_and_learn():
    trainer = trainer_of(
        a_machine(), epochs=15, head_natural_rate=0.2, lookahead=4, schedule="cosine"
    )
    first = trainer.gradients(*next(trainer.batches.epoch(0))).values["objective"]
    trainer.run()
    assert trainer.gradients(IMAGES, LABELS).values["objective"] > first + 0.1
    rates = {group["method"]: group["lr"] for group in trainer.optimiser.param_groups}
    assert math.isclose(rates["head"] / rates["adam"], 0.2 / 0.01)


def test_natural_steps_of_the_head_that_cannot_be_are_refused():
    with pytest.raises(dkm.InvalidInputError, match="head_natural_rate must be"):
        Recipe.checked({"head_natural_rate": 1.1})
    with pytest.raises(dkm.InvalidInputError, match="leave head_natural_rate at 0"):
        trainer_of(a_machine(kl="taylor"), head_natural_rate=0.1)


def stepped(trainer, count, each=lambda: None):
    """Take steps of training, on batches in order, and call a function after each."""
    for _ in range(count):
        epoch, step = divmod(trainer.progress.step, trainer.batches.steps)
        trainer.step(*next(trainer.batches.epoch(epoch, step)))
        trainer.progress.step += 1
        each()
    return [p.detach().clone() for p in trainer.model.parameters()]


@pytest.mark.parametrize("optimiser", ["adam", "muon"])
def test_lookahead_averages_every_parameter(optimiser):
    """Against a machine that steps without averages, from where the other was averaged."""
    options = {"optimiser": optimiser, "learning_rate": 0.1, "muon_rate": 0.1, "epochs": 4}
    rate, every = 0.3, 3
    averaged = trainer_of(a_machine(), lookahead=every, lookahead_rate=rate, **options)
    plain = trainer_of(a_machine(), **options)
    muon = [kind == "mixing" and optimiser == "muon" for kind in kinds(plain.model).values()]
    slow = [p.detach().clone() for p in plain.model.parameters()]
    for steps in (3, 3, 2):  # 8 steps in all: the last average comes early
        fast = stepped(plain, steps)
        found = stepped(averaged, steps)
        for place, (old, new) in enumerate(zip(slow, fast, strict=True)):
            mean = (1 - rate) * old + rate * new
            slow[place] = mean * (old.norm() / mean.norm()) if muon[place] else mean
        torch.testing.assert_close(found, slow, rtol=1e-12, atol=1e-15)
        plain.model.load_state_dict(averaged.model.state_dict())
        slow = found
    assert averaged.progress.step == averaged.total_steps
    if optimiser == "muon":
        start = [p.detach().norm() for p in a_machine().parameters()]
        kept = [math.isclose(new.norm(), old) for new, old in zip(slow, start, strict=True)]
        assert [place for place, each in enumerate(muon) if each and not kept[place]] == []


def test_between_averages_lookahead_changes_nothing():
    one, other = (trainer_of(a_machine(), lookahead=k) for k in (0, 4))
    torch.testing.assert_close(stepped(one, 3), stepped(other, 3), rtol=0, atol=0)
    assert all("slow" not in state for state in one.optimiser.state.values())


def test_a_full_rate_averages_nothing_away():
    one, other = (trainer_of(a_machine(), lookahead=k, lookahead_rate=1.0) for k in (0, 2))
    torch.testing.assert_close(stepped(one, 6), stepped(other, 6), rtol=1e-12, atol=1e-15)


def test_where_the_rate_decays_to_zero_training_ends_on_both_weights():
    trainer, apart = trainer_of(a_machine(), lookahead=5, epochs=60, schedule="cosine"), []

    def note():
        state = trainer.optimiser.state
        apart.append(max((p - state[p]["slow"]).abs().max().item() for p in state))

    stepped(trainer, 120, note)
    assert apart[-1] == 0
    assert 0 < apart[-2] < 1e-2 * max(apart)


def test_options_of_lookahead_are_checked():
    for name, value in (("lookahead", -1), ("lookahead_rate", 0), ("lookahead_rate", 1.1)):
        with pytest.raises(dkm.InvalidInputError, match=f"{name} must be"):
            Recipe.checked({name: value})


@pytest.mark.parametrize(
    "options",
    [
        {"optimiser": "muon"},
        {"mixing_rate": 0.5, "gram_rate": 2.0},
        {"lookahead": 2},
        {"lookahead": 4, "optimiser": "muon", "natural_rate": 0.1},
        {"head_natural_rate": 0.1},
        {"head_natural_rate": 0.1, "lookahead": 2},
        {"alternate_flips": True, "cutout": 2, "nu_start": 0.01},
    ],
)
def test_a_stopped_run_goes_on_to_the_bit(tmp_path, options):
    whole, stopped, resumed = a_machine(), a_machine(), a_machine()
    trainer_of(whole, **options).run()
    store = CheckpointStore(tmp_path)
    first = trainer_of(stopped, store, **options)
    first.stop = lambda: first.progress.step >= 3
    assert first.run().interrupted
    second = trainer_of(resumed, store, **options)
    second.restore(store.load()[0])
    second.run()
    assert same(whole, resumed)


def test_a_state_fits_other_rates_but_not_another_optimiser(tmp_path):
    store = CheckpointStore(tmp_path)
    trainer_of(a_machine(), store, epochs=1).run()
    trainer_of(a_machine(), gram_rate=3.0).restore(store.load()[0])
    with pytest.raises(CheckpointError, match="or is another one"):
        trainer_of(a_machine(), optimiser="muon").restore(store.load()[0])
    with pytest.raises(CheckpointError, match="or is another one"):
        trainer_of(a_machine(), natural_rate=0.1).restore(store.load()[0])
    with pytest.raises(CheckpointError, match="or is another one"):
        trainer_of(a_machine(), head_natural_rate=0.1).restore(store.load()[0])
    with pytest.raises(CheckpointError, match="or is another one"):
        trainer_of(a_machine(), lookahead=5).restore(store.load()[0])


@pytest.mark.parametrize(
    "options",
    [{"optimiser": "muon"}, {"lookahead": 1}, {"natural_rate": 0.1}, {"head_natural_rate": 0.1}],
)
def test_a_failed_step_is_taken_back(options):
    trainer = trainer_of(a_machine(), **options)
    inputs, targets = next(trainer.batches.epoch(0))
    trainer.step(inputs, targets)
    good = copy.deepcopy(trainer.model.state_dict())
    state = copy.deepcopy(trainer.optimiser.state_dict()["state"])
    trainer.step(inputs, targets)
    trainer.snapshot.restore()
    for name, value in trainer.model.state_dict().items():
        assert "running" in name or torch.equal(value, good[name])
    for place, entries in trainer.optimiser.state_dict()["state"].items():
        assert all(torch.equal(value, state[place][name]) for name, value in entries.items())


def test_scales_of_normalisations_are_bounded():
    """One before a homogeneous kernel and a normalisation is moved by nothing but rounding."""
    machine = a_machine()
    trainer = trainer_of(machine)
    scales = [
        p for name, p in machine.named_parameters() if name.endswith(("data_scale", "ducing_scale"))
    ]
    assert scales
    with torch.no_grad():
        for scale in scales:
            scale.fill_(-30.0)
    inputs, targets = next(iter(trainer.batches.epoch(0)))
    trainer.step(inputs, targets)
    assert {scale.item() for scale in scales} == {-10.0}

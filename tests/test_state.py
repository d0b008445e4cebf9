"""The state of a machine: how it moves, is saved and loaded, and what may change it."""

import copy
import io
import math
import pickle
from functools import cache

import pytest
import torch

import convdkm as dkm
from convdkm.testing import random_gram

LABELS = torch.arange(8) % 3


def images(count=8, seed=0):
    return torch.randn(count, 1, 6, 6, generator=torch.Generator().manual_seed(seed))


# Every option that gives a machine another kind of state.
VARIANTS = {
    "default": {},
    "local norms": {"normalisation": ("local", "local"), "scaling": ("local", "none")},
    "norms by location": {
        "normalisation": ("batch", "location"),
        "scaling": ("batch", "location"),
    },
    "no norms": {"normalisation": ("none", "none"), "scaling": ("none", "none")},
    "batch statistics": {"statistics": "batch", "centre": True},
    "centre": {"centre": True, "mixing": "patches"},
    "linear top": {"top": "linear"},
    "linear top with mixing": {"top": "linear+mix"},
    "pooled top with mixing": {"top": "gap+mix"},
    "whitened": {
        "mixing_parameterisation": "whitened",
        "gram_parameterisation": "whitened",
        "head_parameterisation": "whitened",
    },
    "scaled": {"gram_scale": 30.0, "learn_gram_scale": True, "learn_skip": True},
    "outputs of their own": {"head_covariance": "per-output", "head_kl": "mean"},
    "gaussian": {"likelihood": "gaussian"},
    "gaussian, fixed noise": {"likelihood": dkm.Gaussian(3, learn_noise=False, classes=True)},
    "NNGP": {"nu": math.inf},
    "no regularisation": {"nu": 0.0},
    "learned kernel": {
        "kernel": dkm.ArcCosine(weight_variance=1.2, bias_variance=0.1),
        "jitter": 1e-4,
    },
    "kernels": {
        "kernel": dkm.ConvexCombination(dkm.ArcCosine(), dkm.SquaredExponential(), learn=True)
    },
    "everything lazy": {
        "normalisation": ("local", "location"),
        "scaling": ("local", "location"),
        "centre": True,
        "top": "linear+mix",
        "likelihood": "gaussian",
    },
}


def build(variant="default"):
    """A machine as the options of a variant make it."""
    return dkm.resnet(1, 3, (4, 6), (1, 1), **copy.deepcopy(VARIANTS[variant]))


def started(variant="default", seed=0):
    return build(variant).initialise(images(seed=seed), LABELS, seed=seed)


@cache
def _trained(variant):
    model = started(variant)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    for seed in (1, 2):
        optimiser.zero_grad()
        (-model.train().objective(images(seed=seed), LABELS, num_data=len(LABELS)).total).backward()
        optimiser.step()
    return model


def trained(variant="default"):
    """A machine after initialisation and two steps of training, so that no state is as it began."""
    return copy.deepcopy(_trained(variant))


def predict(model):
    return model.predict(images(5, seed=9))


def assert_same_prediction(actual, expected):
    """Identical in every bit."""
    assert torch.equal(actual.mean, expected.mean)
    assert torch.equal(actual.variance, expected.variance)
    assert torch.equal(actual.log_probs, expected.log_probs)


def assert_close_prediction(actual, expected):
    """The same up to rounding."""
    for name in ("mean", "variance", "log_probs"):
        torch.testing.assert_close(
            getattr(actual, name), getattr(expected, name), rtol=1e-5, atol=1e-5
        )


def state_of(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def changed(before, after):
    """Names of the entries in which two states differ; they must have the same names."""
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


every_variant = pytest.mark.parametrize("variant", VARIANTS)


# -- saving and loading ----------------------------------------------------------------------------


@every_variant
def test_a_state_dict_makes_another_instance_the_same(variant):
    model = trained(variant)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other = build(variant)
    with pytest.raises(dkm.NotInitialisedError):
        predict(other)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert not changed(state_of(model), state_of(other))
    assert_same_prediction(predict(other), predict(model))
    objectives = [
        m.eval().objective(images(), LABELS, num_data=len(LABELS)).total for m in (model, other)
    ]
    assert torch.equal(*objectives)


@every_variant
def test_copies_and_pickles_are_the_same(variant):
    model = trained(variant)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not changed(state_of(model), state_of(other))
        assert_same_prediction(predict(other), predict(model))
        kept = state_of(model)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(1.5)
        assert not changed(kept, state_of(model)), "a copy shares its parameters"


@every_variant
def test_loading_over_an_initialised_machine_replaces_it(variant):
    model = trained(variant)
    other = started(variant, seed=5)
    assert not torch.equal(predict(other).mean, predict(model).mean)
    other.load_state_dict(model.state_dict())
    assert_same_prediction(predict(other), predict(model))


def test_loaded_lazy_parameters_are_learned():
    variant = "everything lazy"
    other = build(variant)
    other.load_state_dict(trained(variant).state_dict())
    names = {name for name, _ in other.named_parameters()}
    assert {"body.flatten.weight", "body.stem.norm.log_inducing_scale"} <= names
    assert all(parameter.requires_grad for parameter in other.parameters())
    assert all(parameter.is_leaf for parameter in other.parameters())
    other.objective(images(), LABELS, num_data=len(LABELS)).total.backward()
    assert other.body.flatten.weight.grad.abs().max() > 0


def test_an_uninitialised_state_stays_uninitialised():
    model = started()
    model.load_state_dict(build().state_dict())
    with pytest.raises(dkm.NotInitialisedError):
        predict(model)


@pytest.mark.parametrize(
    ("saved", "into", "name"),
    [
        (dkm.Norm(inducing_scale="none"), dkm.Norm(), "log_inducing_scale"),
        (dkm.Norm(), dkm.Norm(inducing_scale="none"), "log_inducing_scale"),
        (dkm.Norm(inducing_scale="local"), dkm.Norm(), "log_inducing_scale"),
        (dkm.Norm(data_scale="location"), dkm.Norm(), "log_data_scale"),
        (dkm.Norm(data="location"), dkm.Norm(), "running_variance"),
        (dkm.Norm(), dkm.Norm(data="image"), "running_variance"),
        (dkm.Flatten(3), dkm.Flatten(), "weight"),
        (dkm.GramLayer(4), dkm.GramLayer(4, math.inf), "factor"),
        (dkm.GramLayer(4, math.inf), dkm.GramLayer(4), "factor"),
    ],
    ids=str,
)
def test_a_state_of_other_options_is_refused(saved, into, name):
    saved.initialise(random_gram(4, (2, 2)))
    with pytest.raises(RuntimeError, match=name):
        into.load_state_dict(saved.state_dict())


@every_variant
def test_training_goes_on_from_a_checkpoint_as_if_nothing_had_happened(variant):
    model = trained(variant)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(machine, its_optimiser, seed):
        its_optimiser.zero_grad()
        (
            -machine.train().objective(images(seed=seed), LABELS, num_data=len(LABELS)).total
        ).backward()
        its_optimiser.step()

    step(model, optimiser, 3)
    other = build(variant)
    other.load_state_dict(model.state_dict())
    other_optimiser = torch.optim.Adam(other.parameters(), lr=1e-3)
    other_optimiser.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    step(model, optimiser, 4)
    step(other, other_optimiser, 4)
    assert not changed(state_of(model), state_of(other))


# -- moving ----------------------------------------------------------------------------------------


@every_variant
def test_precision_is_that_of_the_data_path_only(variant):
    model = trained(variant)
    assert model.dtype == torch.float32
    before, expected = state_of(model), predict(model)
    assert expected.mean.dtype == torch.float32
    for move, dtype in (
        (lambda m: m.double(), torch.float64),
        (lambda m: m.float(), torch.float32),
        (lambda m: m.to(torch.float64), torch.float64),
        (lambda m: m.to("cpu"), torch.float64),
        (lambda m: m.to(dtype=torch.float32, device="cpu"), torch.float32),
    ):
        assert move(model) is model
        assert model.dtype == dtype
        state = state_of(model)
        assert not changed(before, state), "moving changed the state"
        assert all(v.dtype == torch.float64 for v in state.values() if v.is_floating_point())
        prediction = predict(model)
        assert prediction.mean.dtype == dtype
        torch.testing.assert_close(
            prediction.log_probs.double(), expected.log_probs.double(), rtol=1e-3, atol=1e-3
        )
    assert_same_prediction(predict(model), expected)


def test_the_data_path_really_is_in_the_precision_chosen():
    model = trained()
    exact = predict(model.double()).mean
    rough = predict(model.float()).mean
    assert not torch.equal(exact.float(), rough)
    torch.testing.assert_close(exact, rough.double(), rtol=1e-3, atol=1e-4)
    assert model.gram(images()).it.dtype == torch.float32
    assert model.double().gram(images()).it.dtype == torch.float64
    assert model.gram(images()).ii.dtype == torch.float64


@every_variant
def test_machines_without_data_on_the_meta_device(variant):
    model = trained(variant)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    model.to("meta")
    assert model.device.type == "meta"
    assert model.dtype == torch.float32
    state = model.state_dict()
    assert all(value.is_meta for value in state.values())
    assert {name: value.shape for name, value in state.items()} == shapes
    assert all(v.dtype == torch.float64 for v in state.values() if v.is_floating_point())
    prediction = model.predict(images(5).to("meta"))
    assert prediction.log_probs.shape == (5, 3)
    assert prediction.log_probs.is_meta


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter:UserWarning")
@every_variant
def test_a_state_loads_onto_the_device_of_the_machine(variant):
    state = trained(variant).state_dict()
    model = build(variant).to("meta")
    model.load_state_dict(state)
    assert {value.device.type for value in model.state_dict().values()} == {"meta"}


# -- what may change state -------------------------------------------------------------------------

RUNNING = ("running_variance", "running_mean")


@every_variant
def test_evaluation_changes_nothing(variant):
    model = trained(variant).eval()
    before = state_of(model)
    parameters = {name: id(parameter) for name, parameter in model.named_parameters()}
    model.objective(images(seed=3), LABELS, num_data=len(LABELS)).total.backward()
    model.predict(images(seed=3))
    model.gram(images(seed=3))
    model(images(seed=3))
    model.folded()
    assert not changed(before, state_of(model))
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == parameters


@every_variant
def test_training_changes_running_statistics_only(variant):
    model = trained(variant).train()
    before = state_of(model)
    model.objective(images(seed=3), LABELS, num_data=len(LABELS)).total.backward()
    moved = changed(before, state_of(model))
    expected = {name for name in before if name.split(".")[-1] in RUNNING}
    assert moved == expected


def test_running_statistics_are_averages_with_momentum():
    gram = dkm.Gram(torch.eye(2).double(), torch.ones(3, 2), torch.full((3,), 2.0))
    norm = dkm.Norm(momentum=0.25)
    norm.initialise(gram)
    assert float(norm.running_variance) == 2.0
    norm.train()(gram * 3.0)
    assert float(norm.running_variance) == 0.75 * 2 + 0.25 * 6


@every_variant
def test_prediction_leaves_modes_and_statistics_as_they_were(variant):
    model = trained(variant).train()
    model.body.stem.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    before = state_of(model)
    first = predict(model)
    second = predict(model)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert not changed(before, state_of(model))
    assert_same_prediction(second, first)
    assert_same_prediction(predict(model.eval()), first)
    assert not first.mean.requires_grad


def test_modes_are_restored_after_an_error():
    model = trained().train()
    with pytest.raises(dkm.InvalidInputError):
        model.predict(torch.full((2, 1, 6, 6), math.nan))
    assert all(module.training for module in model.modules())


def test_calibration_replaces_running_statistics_by_averages_over_batches():
    model = trained("centre")
    model.body.stem.eval()
    modes = [module.training for module in model.modules()]
    before = state_of(model)
    assert model.calibrate([images(seed=4), images(seed=5)]) is model
    moved = changed(before, state_of(model))
    assert moved == {name for name in before if name.split(".")[-1] in RUNNING}
    assert [module.training for module in model.modules()] == modes
    averages = []
    for seed in (4, 5):
        other = copy.deepcopy(model).calibrate([images(seed=seed)])
        averages.append(other.body.stem.norm.running_variance)
    expected = sum(averages) / 2
    torch.testing.assert_close(model.body.stem.norm.running_variance, expected)
    again = copy.deepcopy(model).calibrate([images(seed=4), images(seed=5)])
    assert not changed(state_of(model), state_of(again))
    momenta = {m.momentum for m in model.modules() if isinstance(m, (dkm.Norm, dkm.Centre))}
    assert momenta == {0.1}


@every_variant
def test_a_folded_machine_predicts_the_same(variant):
    model = trained(variant).train()
    before = state_of(model)
    folded = model.folded()
    expected = predict(model)
    assert_close_prediction(folded.predict(images(5, seed=9)), expected)
    pieces = folded.predict(images(5, seed=9), batch_size=2)
    if variant != "batch statistics":
        torch.testing.assert_close(pieces.mean, expected.mean, rtol=1e-4, atol=1e-4)
    assert not changed(before, state_of(model))
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_folded_machine_is_a_snapshot():
    model = trained()
    folded = model.folded()
    expected = folded.predict(images(5, seed=9))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    model.train().objective(images(seed=4), LABELS, num_data=len(LABELS))
    assert float((predict(model).mean - expected.mean).abs().max()) > 1e-3
    assert_same_prediction(folded.predict(images(5, seed=9)), expected)
    unpickled = pickle.loads(pickle.dumps(folded))
    assert_same_prediction(unpickled.predict(images(5, seed=9)), expected)


# -- initialisation and learning -------------------------------------------------------------------


@every_variant
def test_the_same_seed_gives_the_same_start(variant):
    models = []
    for drawn_before in (1, 2):
        torch.manual_seed(drawn_before)
        models.append(build(variant).initialise(images(12), LABELS.repeat(2)[:12], seed=7))
    assert not changed(state_of(models[0]), state_of(models[1]))
    other = build(variant).initialise(images(12), LABELS.repeat(2)[:12], seed=8)
    assert "input.inducing" in changed(state_of(models[0]), state_of(other))


def test_without_a_seed_the_global_generator_decides():
    states = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        states.append(state_of(build().initialise(images(12))))
    assert not changed(states[0], states[1])
    assert changed(states[0], states[2])


def test_a_seed_leaves_the_global_generator_alone():
    model = build()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model.initialise(images(), LABELS, seed=0)
    assert torch.equal(torch.rand(3), expected)


HYPERPARAMETERS = (".logit", ".logits", ".log_value", ".log_noise")
"""Names of what the user chooses and training moves: neither drawn nor taken from data."""


@every_variant
def test_a_second_initialise_starts_again(variant):
    model = trained(variant)
    fresh = build(variant)
    chosen = {n: v for n, v in model.state_dict().items() if n.endswith(HYPERPARAMETERS)}
    fresh.load_state_dict(chosen, strict=False)
    fresh.initialise(images(seed=6), LABELS, seed=6)
    parameters = {name: id(parameter) for name, parameter in model.named_parameters()}
    assert model.initialise(images(seed=6), LABELS, seed=6) is model
    assert not changed(state_of(fresh), state_of(model))
    assert_same_prediction(predict(model), predict(fresh))
    # An optimiser made before holds the same parameters after.
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == parameters


def test_initialise_takes_images_of_another_size():
    variant = "everything lazy"
    model = trained(variant)
    bigger = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    model.initialise(bigger, LABELS, seed=0)
    assert model.body.flatten.weight.shape == (6, 6, 4, 4)
    assert torch.isfinite(model.predict(bigger).mean).all()


def test_images_that_make_the_start_are_balanced_over_classes():
    inputs = torch.arange(12.0).reshape(12, 1, 1, 1).expand(12, 1, 3, 3) + 1
    labels = torch.tensor([0] * 9 + [1, 1, 2])
    model = dkm.resnet(1, 3, (3,), (1,)).initialise(
        inputs + 0.1 * torch.randn(12, 1, 3, 3), labels, seed=0, max_images=3
    )
    centre = model.input.inducing[:, 0, 1, 1].round().long() - 1
    assert sorted(labels[centre].tolist()) == [0, 1, 2]


def test_gradients_reach_every_parameter():
    model = started()
    for parameter in model.parameters():
        assert parameter.grad is None
    (-model.objective(images(seed=1), LABELS, num_data=len(LABELS)).total).backward()
    without = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().max() > 1e-12
    ]
    assert not without, f"no gradient reaches {without}"


@every_variant
def test_every_parameter_is_used(variant):
    model = trained(variant)
    model.zero_grad()
    (-model.objective(images(seed=1), LABELS, num_data=len(LABELS)).total).backward()
    unused = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not unused


@every_variant
def test_a_step_of_an_optimiser_changes_predictions_for_the_better(variant):
    model = started(variant)
    before = predict(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-5)
    objective = model.train().objective(images(), LABELS, num_data=len(LABELS)).total
    (-objective).backward()
    optimiser.step()
    assert not torch.equal(predict(model).mean, before.mean)
    assert model.objective(images(), LABELS, num_data=len(LABELS)).total > objective

"""Tests of the configuration and the presets."""

import inspect
import math

import pytest
import yaml
from pydantic import ValidationError

import convdkm as dkm
from convdkm.architectures import build_model
from convdkm.cli.options import choices
from convdkm.config import (
    EARLIER,
    SECTION,
    SECTIONS,
    Recipe,
    RunConfig,
    read_yaml,
)
from convdkm.data.registry import KNOWN_SETS
from convdkm.data.whitening import chosen_whitening
from convdkm.errors import InvalidInputError
from convdkm.options import MachineOptions, nearest
from convdkm.presets import default_for, names, preset

# -- the fields ------------------------------------------------------------------------------------


def test_names_are_unique_so_that_each_is_a_flag():
    every = [name for section in SECTIONS.values() for name in section.model_fields]
    assert len(every) == len(set(every)) == len(SECTION)
    assert not set(every) & set(SECTIONS)


@pytest.mark.parametrize("name", SECTION)
def test_every_field_says_what_it_is_and_has_a_default(name):
    field = SECTIONS[SECTION[name]].model_fields[name]
    assert field.description
    assert not field.description.endswith(".")
    assert not field.is_required()


def test_the_defaults_are_valid_and_the_papers():
    config = RunConfig.of({})
    assert config == RunConfig()
    assert config.model.inducing == (128, 256, 512)
    assert config.training.betas == (0.8, 0.9)
    assert (config.training.learning_rate, config.training.epochs) == (0.01, 100)


def test_a_configuration_does_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        RunConfig().training.epochs = 3


# -- text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nu": math.inf, "inducing": (16, 32), "blocks": (1, 1), "strides": (2, 2)},
        {"nu": (0.1, math.inf, 1e-12), "learning_rate": 1e-5, "dataset": "/a b/ü.npz"},
        {"channels": 3, "arccos_order": 0, "centre": True, "train_size": 100, "samples": 7},
    ],
)
def test_a_file_gives_the_same_configuration_back(options, tmp_path):
    config = RunConfig.of(options)
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    assert RunConfig.from_file(path) == config
    assert RunConfig.of(config.model_dump(mode="json")) == config
    assert list(yaml.safe_load(config.to_yaml())) == ["data", "model", "training"]


def test_every_option_is_in_the_file():
    content = yaml.safe_load(RunConfig().to_yaml())
    assert [name for section in content.values() for name in section] == list(SECTION)
    assert list(RunConfig().flat()) == list(SECTION)


@pytest.mark.parametrize("text", ["inf", ".inf", "'inf'", "Infinity"])
def test_an_infinite_weight_may_be_written_as_people_do(text, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(f"nu: {text}")
    assert RunConfig.from_file(path).model.nu == math.inf


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("16,32,64", (16, 32, 64)),
        ("16/32/64", (16, 32, 64)),
        (" 16, 32 ", (16, 32)),
        ("16", (16,)),
        (16, (16,)),
        ([16, 32], (16, 32)),
    ],
)
def test_lists_are_written_in_several_ways(given, meant):
    assert RunConfig.of({"inducing": given}).model.inducing == meant


def test_one_weight_or_one_for_each_layer():
    assert RunConfig.of({"nu": "0.5"}).model.nu == 0.5
    assert RunConfig.of({"nu": "0.5,inf"}).model.nu == (0.5, math.inf)
    assert RunConfig.of({"nu": 0}).model.nu == 0


def test_numbers_in_scientific_notation_are_numbers(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("learning_rate: 1e-3\nmodel: {jitter: 1e-4}")
    config = RunConfig.from_file(path)
    assert (config.training.learning_rate, config.model.jitter) == (0.001, 0.0001)


def test_an_empty_file_is_the_defaults_and_sections_may_be_empty(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("")
    assert RunConfig.from_file(path) == RunConfig()
    path.write_text("model:\nepochs: 3\nbatch-size: 7\n")
    assert RunConfig.from_file(path).training == Recipe(epochs=3, batch_size=7)


def test_a_file_cannot_run_code(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("epochs: !!python/object/apply:os.system ['touch here']")
    with pytest.raises(InvalidInputError, match="not YAML"):
        read_yaml(path)


# -- precedence ------------------------------------------------------------------------------------


def test_an_update_changes_what_it_names_and_nothing_else():
    before = RunConfig.of({"epochs": 3, "nu": 0.1})
    after = before.updated({"nu": 0.2, "training": {"seed": 4}})
    assert (after.model.nu, after.training.epochs, after.training.seed) == (0.2, 3, 4)
    assert before.model.nu == 0.1
    assert after.updated({}) == after


def test_lists_of_a_preset_follow_the_number_of_stages():
    fast = preset("fast")
    for inducing, blocks in (((8,), (1,)), ("8,16", (1, 2)), ((4, 4, 4, 4), (1, 2, 2, 2))):
        model = fast.config("cifar10", inducing=inducing).model
        assert (model.blocks, model.strides) == (blocks, (2,))
    assert preset("published").config("cifar10", inducing=(8, 16)).model.strides == (2, 2)
    given = fast.config("cifar10", inducing=(8, 16), blocks=(1, 1, 1)).model
    assert given.blocks == (1, 1, 1)
    with pytest.raises(InvalidInputError, match="there are 2 stages"):
        given.stages  # noqa: B018


def test_a_preset_is_overridden_for_a_data_set_and_then_by_options():
    quick = preset("quick")
    assert quick.config("cifar10").training.flip is True
    assert quick.config("digits").training.flip is False
    assert quick.config("digits", flip=True, epochs=1).training.flip is True


def test_a_preset_may_be_built_on_another():
    fast, quick = preset("fast"), preset("quick")
    assert quick.base == "fast"
    assert fast.base is None
    for dataset in ("cifar10", "mnist", "digits"):
        ours, theirs = quick.config(dataset), fast.config(dataset)
        assert ours.data == theirs.data
        for name in EARLIER:
            assert getattr(ours.training, name) == getattr(theirs.training, name)
        assert ours.model.kernel == theirs.model.kernel == "normalised-polynomial"
        assert ours.training.epochs != theirs.training.epochs
    assert quick.config("cifar10").model.input_stride == 2
    assert quick.config("digits").model.input_stride == 1


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"learing_rate": 1}, ["learing_rate", "'learning_rate'"]),
        ({"model": {"inducng": 1}}, ["inducng", "section 'model'", "'inducing'"]),
        ({"model": {"epochs": 1}}, ["'epochs' belongs in section 'training'"]),
        ({"trainig": {"epochs": 1}}, ["trainig", "'training'"]),
        ({"xyzzy": 1}, ["unknown option 'xyzzy'"]),
        ({"model": 3}, ["section 'model' must hold options"]),
        ({"epochs": 0}, ["epochs", "0"]),
        ({"epochs": 2.5}, ["epochs", "2.5"]),
        ({"epochs": None}, ["epochs", "None"]),
        ({"nu": -1}, ["nu", "-1"]),
        ({"nu": "1,-1"}, ["nu", "-1"]),
        ({"nu": math.nan}, ["nu", "nan"]),
        ({"inducing": "16,x"}, ["inducing", "'x'"]),
        ({"inducing": [16, 0]}, ["inducing", "0"]),
        ({"top": "gpa"}, ["top", "'gap'", "'gpa'"]),
        ({"channels": 2}, ["channels", "1 or 3"]),
        ({"betas": (0.8,)}, ["betas are two numbers"]),
        ({"betas": (0.8, 1.0)}, ["betas are two numbers"]),
        ({"milestones": (0.4, 40)}, ["milestones are shares of training"]),
        ({"skip_weight": 1.5}, ["skip_weight must be at most 1", "1.5"]),
        ({"skip_weight": -0.5}, ["skip_weight must be at least 0", "-0.5"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"epochs": 0, "batch_size": 0}, ["epochs", "batch_size"]),
    ],
)
def test_a_mistake_names_the_source_the_option_and_the_nearest(values, words):
    with pytest.raises(InvalidInputError) as caught:
        RunConfig.of(values, "mine.yaml")
    message = str(caught.value)
    assert message.startswith("mine.yaml: ")
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidInputError, match="cannot read"):
        RunConfig.from_file(tmp_path / "nothing.yaml")
    (tmp_path / "list.yaml").write_text("[1, 2]")
    with pytest.raises(InvalidInputError, match="must hold options"):
        RunConfig.from_file(tmp_path / "list.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError, match="not YAML"):
        RunConfig.from_file(tmp_path / "binary.yaml")


def test_a_choice_of_numbers_may_be_text():
    assert RunConfig.of({"channels": "3"}).data.channels == 3
    with pytest.raises(dkm.InvalidInputError, match="channels must be 1 or 3, got '2'"):
        RunConfig.of({"channels": "2"})


def test_the_nearest_name_is_suggested_only_if_it_is_near():
    assert nearest("Epocs", SECTION) == " Did you mean 'epochs'?"
    assert nearest("zzzzzz", SECTION) == ""


# -- the machine that a configuration describes ----------------------------------------------------

CHOICES = [
    (name, value)
    for name, field in MachineOptions.model_fields.items()
    for value in choices(field.annotation)
]


@pytest.mark.parametrize(("name", "value"), CHOICES)
def test_a_machine_can_be_built_of_every_choice(name, value):
    config = RunConfig.of({"inducing": 4, "blocks": 1, name: value})
    assert build_model(config.model, 3, 5).likelihood is not None


def test_options_and_defaults_are_those_of_resnet():
    shown = inspect.signature(dkm.resnet).parameters
    for name, field in MachineOptions.model_fields.items():
        assert shown[name].default == field.default, name
        told = f"{name}: " if name in ("kernel", "likelihood") else f"{name}: {field.description}."
        assert dkm.resnet.__doc__.count(f" {told}") == 1
    ours, theirs = dkm.resnet(3, 10), build_model(MachineOptions(), 3, 10)
    assert repr(ours) == repr(theirs)
    assert ours.likelihood.expectation == theirs.likelihood.expectation == "nodes"
    with pytest.raises(InvalidInputError, match="Did you mean 'gram_scale'"):
        dkm.resnet(3, 10, gram_scal=2.0)


def test_every_choice_reaches_resnet_as_it_does_a_configuration():
    for name, value in CHOICES:
        ours = dkm.resnet(3, 5, (4, 6), (1, 1), **{name: value})
        theirs = build_model(MachineOptions(inducing=(4, 6), blocks=1, **{name: value}), 3, 5)
        assert repr(ours) == repr(theirs), (name, value)


def test_presets_keep_the_expectations_that_they_had():
    had = dict.fromkeys(("paper", "paper-benchmark", "published", "skr"), "monte-carlo")
    for name in names():
        assert preset(name).config("cifar10").model.expectation == had.get(name, "nodes")


def test_a_file_of_an_earlier_version_has_part_of_the_recipe_with_the_data():
    values = {"data": {"whitening": "scale", "crop": 1, "train_size": 7}, "training": {"epochs": 3}}
    config = RunConfig.of(values)
    assert (config.training.whitening, config.training.crop) == ("scale", 1)
    assert (config.data.train_size, config.training.epochs) == (7, 3)
    with pytest.raises(InvalidInputError, match="'crop' belongs in section 'training'"):
        RunConfig.of({"model": {"crop": 1}})


def test_every_option_reaches_the_machine():
    config = RunConfig.of(
        {
            "inducing": (4, 6),
            "blocks": (1, 1),
            "nu": 0.25,
            "bias_variance": 0.1,
            "kernel_size": 5,
            "top": "linear",
            "likelihood": "gaussian",
            "head_covariance": "per-output",
            "jitter": 1e-3,
            "learn_skip": True,
        }
    )
    text = repr(build_model(config.model, 3, 7))
    for word in ("0.25", "Flatten", "Gaussian", "Noise", "per-output"):
        assert word in text, text


# -- presets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", KNOWN_SETS)
@pytest.mark.parametrize("name", names())
def test_a_preset_has_settings_for_every_known_set(name, dataset):
    config = preset(name).config(dataset)
    assert config.data.dataset == dataset
    stages = len(config.model.inducing)
    assert len(config.model.blocks) in (1, stages)
    assert config.model.strides is None or len(config.model.strides) in (1, stages)
    assert config == RunConfig.of(yaml.safe_load(config.to_yaml()))


@pytest.mark.parametrize("name", names())
def test_a_preset_makes_a_machine(name):
    config = preset(name).config("digits", inducing=(4, 4), blocks=(1, 1), strides=(1, 2))
    model = build_model(config.model, 1, 10)
    assert sum(p.numel() for p in model.parameters()) > 0
    whole = preset(name).config("cifar10")
    if max(whole.model.inducing) <= 64:
        assert build_model(whole.model, 3, 10).head is not None


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize(
    ("dataset", "count", "shape"),
    [("cifar10", 50_000, (3, 32, 32)), ("mnist", 60_000, (1, 28, 28)), ("digits", 1437, (1, 8, 8))],
)
def test_presets_whiten_well_known_sets_without_a_word(name, dataset, count, shape):
    usual = {("cifar10", True): "zca", ("mnist", True): "none", ("digits", True): "scale"}
    zca = {"published": "zca-published"}.get(name, "zca-paper")
    expected = usual.get((dataset, name in ("accurate", "fast", "quick")), zca)
    kind = preset(name).config(dataset).training.whitening
    assert chosen_whitening(kind, count, shape, pytest.fail) == expected


def test_presets_say_what_they_are_and_differ():
    assert len({preset(name).description for name in names()}) == len(names())
    assert len({preset(name).config("cifar10").to_yaml() for name in names()}) == len(names())


def test_the_preset_where_none_is_asked_for():
    assert default_for("digits") == "quick"
    assert default_for("cifar10") == default_for("/home/me/photos") == "paper"


def test_published_settings_are_those_of_the_library():
    config = preset("published").config("cifar10").model
    own = build_model(config, 3, 10).body.get_submodule("stem.kernel.0.kernel")
    assert repr(own) == repr(dkm.PUBLISHED["kernel"])
    for name, value in dkm.PUBLISHED.items():
        if name != "kernel":
            assert getattr(config, name) == value, name


def test_an_unknown_preset_suggests_the_nearest():
    with pytest.raises(InvalidInputError, match="Did you mean 'published'"):
        preset("publishd")

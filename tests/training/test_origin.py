"""Runs that start from the body of another machine."""

import shutil

import pytest
import torch

import convdkm as dkm
from convdkm.config import RunConfig
from convdkm.data import Dataset, load_digits
from convdkm.errors import InvalidInputError
from convdkm.presets import preset
from convdkm.training import Run, fit, resume
from convdkm.training.origin import FREE, with_machine_of_origin
from convdkm.training.session import prepared
from convdkm.training.world import World

TINY = {"inducing": (6, 8), "blocks": (1, 1), "train_size": 90, "test_size": 40, "batch_size": 30}
SHORT = {"epochs": 1, "batch_size": 30}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run on the digits, whose whitening is a matrix."""
    folder = tmp_path_factory.mktemp("origin") / "run"
    return fit("quick", "digits", folder=folder, epochs=2, whitening="zca", **TINY)


@pytest.fixture(scope="module")
def data():
    """Images of other classes: whether a digit is odd."""
    digits = load_digits()
    train, test = digits.train_images[:100], digits.test_images[:60]
    return parity(train, digits.train_labels[:100] % 2, test, digits.test_labels[:60] % 2)


def parity(*parts):
    return Dataset(*parts, num_classes=2, class_names=("even", "odd"), name="parity")


def begun(config, data):
    """The run as it is before the first step."""
    return prepared(config, data, World()).result


def test_body_and_whitening_are_those_of_the_source_and_the_head_is_new(source, data):
    config = preset("quick").config("parity", start_from=str(source.folder))
    run = begun(with_machine_of_origin(config, ["start_from"]), data)
    theirs, moved = source.model.state_dict(), 0
    for name, value in run.model.state_dict().items():
        if name.startswith(("input.", "body.")):
            assert value.shape == theirs[name].shape
            if "running" in name:
                moved += not torch.equal(value, theirs[name])
            else:
                assert torch.equal(value, theirs[name]), name
    assert moved  # the averages are those of the new images
    assert torch.equal(run.whitening.matrix, source.whitening.matrix)
    assert run.model.head.num_outputs == 2
    assert run.config.model.inducing == (6, 8)
    assert run.config.training.whitening == "zca"


@pytest.mark.parametrize(
    "options", [{}, {"head_parameterisation": "whitened"}, {"head_kl": "mean"}]
)
def test_the_head_knows_the_images_that_it_has_seen(data, options):
    config = preset("quick").config("parity", start_from="digits", **options)
    run = begun(with_machine_of_origin(config, ["start_from", *options]), data)
    figures = run.evaluate(data.test_images, data.test_labels)
    assert figures["accuracy"] > 0.8
    assert figures["log_likelihood"] > -0.5


def test_a_run_says_where_it_started_and_resumes_without_it(source, data, tmp_path):
    origin, told = shutil.copytree(source.folder, tmp_path / "origin"), dkm.training.MemorySink()
    options = {"start_from": str(origin), "epochs": 2, "batch_size": 30}
    whole = fit("quick", data, folder=tmp_path / "whole", sinks=[told], **options)
    assert any(f"starting from {origin}" in each for each in messages(told))
    steps = iter(range(100))
    stopped = fit("quick", data, folder=tmp_path / "run", stop=lambda: next(steps) == 1, **options)
    assert not stopped.metrics
    shutil.rmtree(origin)
    again = resume(tmp_path / "run", data=data)
    assert again.metrics["test_log_likelihood"] == whole.metrics["test_log_likelihood"]
    assert Run.open(tmp_path / "run").config.training.start_from == str(origin)


def messages(sink):
    return [text for _, text in sink.messages]


def test_a_file_a_run_and_a_name_are_sources(source, data, tmp_path):
    source.save(tmp_path / "machine.safetensors", storage="float64")
    first = fit("quick", data, start_from=str(source.folder), **SHORT)
    second = fit("quick", data, start_from=str(tmp_path / "machine.safetensors"), **SHORT)
    assert first.metrics["test_log_likelihood"] == second.metrics["test_log_likelihood"]
    third = fit("fast", data, start_from="digits", **SHORT)
    assert third.config.model.inducing == (16, 32)
    assert third.config.training.start_from == "digits"


def test_options_that_contradict_the_source_are_named(data):
    with pytest.raises(InvalidInputError, match=r"inducing is \(16, 32\), not \(4, 4\)") as caught:
        fit("quick", data, start_from="digits", inducing=(4, 4), centre=False, epochs=1)
    assert "centre is 'all', not 'none'" in str(caught.value)
    with pytest.raises(InvalidInputError, match="whitening is 'scale', not 'zca'"):
        fit("quick", data, start_from="digits", whitening="zca")
    with pytest.raises(InvalidInputError, match="kernel is 'normalised-polynomial', not 'erf'"):
        fit(RunConfig.of({"start_from": "digits", "kernel": "erf"}), data)


def test_options_of_head_likelihood_and_objective_are_the_users():
    chosen = {"nu": 1.0, "likelihood": "gaussian", "head_parameterisation": "whitened"}
    config = preset("quick").config("digits", start_from="digits", **chosen)
    kept = with_machine_of_origin(config, [*chosen, "start_from"])
    assert {name: kept.flat()[name] for name in chosen} == chosen
    assert with_machine_of_origin(kept) == kept
    assert with_machine_of_origin(config, ["start_from"]).model.nu == 0.01
    assert set(FREE) <= kept.flat().keys()


def changed(data, change):
    """The same classes of other images."""
    parts = (data.train_images, data.test_images)
    train, test = (change(images) for images in parts)
    return parity(train, data.train_labels, test, data.test_labels)


def test_images_of_another_shape(source, data):
    colour = changed(data, lambda images: images.expand(-1, 3, -1, -1))
    with pytest.raises(InvalidInputError, match=r"of 1 channels, and these have 3: --channels 1"):
        fit("quick", colour, start_from="digits", **SHORT)
    large = changed(data, lambda images: images.repeat(1, 1, 2, 2))
    with pytest.raises(InvalidInputError, match=r"8×8 pixels, .* 16×16 .*: --image-size 8"):
        fit("quick", large, start_from=str(source.folder), **SHORT)
    assert fit("quick", large, start_from="digits", **SHORT).image_shape == (1, 16, 16)


def test_scales_by_place_belong_to_one_size(data, tmp_path):
    placed = fit("quick", "digits", epochs=1, data_scale="location", whitening="scale", **TINY)
    placed.save(tmp_path / "placed.safetensors")
    large = data.train_images.repeat(1, 1, 2, 2)
    with pytest.raises(InvalidInputError, match="8×8 pixels, and these have 16×16"):
        fit("quick", (large, data.train_labels), start_from=str(tmp_path / "placed.safetensors"))


def test_what_is_no_machine_is_refused(data, tmp_path):
    with pytest.raises(InvalidInputError, match=r"no pretrained machine 'digist'. Did you mean"):
        fit("quick", data, start_from="digist")
    with pytest.raises(InvalidInputError, match=r"it has no config.yaml"):
        fit("quick", data, start_from=str(tmp_path))
    own = dkm.resnet(1, 2, (6,), (1,))
    with pytest.raises(InvalidInputError, match="start_from goes with the machines that settings"):
        fit(own, data, start_from="digits")
    fit(own, data, folder=tmp_path / "own", **SHORT)
    with pytest.raises(InvalidInputError, match="a machine of its maker's own"):
        fit("quick", data, start_from=str(tmp_path / "own"))


def test_the_estimator_starts_from_a_machine_too(data):
    estimator = dkm.ConvDKMClassifier(
        options={"start_from": "digits"}, epochs=1, batch_size=50, random_state=0
    )
    estimator.fit(data.train_images.numpy(), data.train_labels.numpy())
    assert estimator.model_.input.num_inducing == 16
    assert estimator.score(data.test_images.numpy(), data.test_labels.numpy()) > 0.8

"""``convdkm pretrained``, and names of machines where runs are taken."""

import json
import shutil

import pytest
from cli_helpers import PHOTO, call, fail, succeed
from PIL import Image

from convdkm import pretrained
from convdkm.data import load_digits
from convdkm.storage.yaml_file import read_yaml
from convdkm.training import Run

FIGURES = pretrained.known()["digits"].figures


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """A folder in which nothing has the name of a machine."""
    monkeypatch.delenv(pretrained.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def picture(tmp_path):
    data = load_digits()
    pixels = (data.test_images[0, 0] * 255).byte().numpy()
    Image.fromarray(pixels).save(tmp_path / "digit.png")
    return tmp_path / "digit.png", data.class_names[data.test_labels[0]]


def test_they_are_listed_with_their_figures(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    out = succeed("pretrained").out
    (line,) = (line for line in out.splitlines() if line.startswith("digits "))
    assert f"{FIGURES['test_accuracy']:.2%}" in line
    assert line.rstrip().endswith("here")
    assert "1×8×8" in line
    monkeypatch.setattr(pretrained, "places", lambda folder: [tmp_path])
    assert "here" not in succeed("pretrained").out


def test_predict(picture):
    path, name = picture
    (row,) = json.loads(succeed("predict", "digits", path, "-f", "json").out)
    assert row["class"] == name
    assert row["probability"] > 0.9


def test_evaluate(photos):
    found = json.loads(succeed("evaluate", "digits", "--json").out)
    assert found["test_images"] == FIGURES["test_images"]
    for name in ("accuracy", "log_likelihood", "ece"):
        assert found[f"test_{name}"] == pytest.approx(FIGURES[f"test_{name}"], abs=1e-3)
    assert "but the model was trained on 0, 1" in fail("evaluate", "digits", "--data", photos)
    assert "--checkpoint goes with a run" in fail("evaluate", "digits", "--checkpoint", "best")


def test_a_machine_that_does_not_know_its_images(photo_run, photos, tmp_path):
    Run.open(photo_run).save(tmp_path / "photos.safetensors")
    assert "name some with --data" in fail("evaluate", tmp_path / "photos.safetensors")
    moved = shutil.copytree(photos, tmp_path / "moved")
    outcome = succeed("evaluate", tmp_path / "photos.safetensors", "--data", moved, "--json")
    assert json.loads(outcome.out)["test_images"] == 30
    assert "images of" in outcome.err
    assert "trained on are scored too" in outcome.err


def test_verify_and_export(picture, tmp_path):
    assert succeed("verify", "digits").out.endswith("digits.safetensors: ok\n")
    file = tmp_path / "digits-folded.safetensors"
    succeed("export", "digits", file)
    rows = [
        json.loads(succeed("predict", machine, picture[0], "-f", "json").out)[0]
        for machine in ("digits", file)
    ]
    assert rows[0]["probability"] == pytest.approx(rows[1]["probability"], abs=1e-6)


def test_a_file_that_is_not_the_published_one(tmp_path, monkeypatch, picture):
    shutil.copy(pretrained.PACKAGED / "digits.safetensors", tmp_path)
    path = tmp_path / "digits.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setenv(pretrained.VARIABLE, str(tmp_path))
    for command in (["evaluate"], ["verify"], ["predict"]):
        more = [picture[0]] if command == ["predict"] else []
        assert "its SHA-256 should be" in fail(*command, "digits", *more)


def test_a_name_that_is_none(picture):
    assert "Did you mean 'digits'?" in fail("evaluate", "digts")
    assert "Did you mean 'digits'?" in fail("predict", "digts", picture[0])
    assert "Did you mean 'digits'?" in fail("train", "digits", "--from", "digts")
    assert "it does not exist" in fail("evaluate", "no/such/run")


def test_show_takes_the_file_of_a_machine(tmp_path):
    path = shutil.copy(pretrained.PACKAGED / "digits.safetensors", tmp_path)
    assert "gram" in succeed("show", path).out


def test_training_starts_from_a_machine_and_resumes_without_it(photos, tmp_path):
    machine = shutil.copy(pretrained.PACKAGED / "digits.safetensors", tmp_path / "m.safetensors")
    options = ["--channels", 1, "--image-size", 8, "--epochs", 1, "--batch-size", 8, "--crop", 0]
    outcome = call("train", photos, "--from", machine, *options, "-o", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    config = read_yaml(tmp_path / "run" / "config.yaml")
    assert config["training"]["start_from"] == str(machine)
    assert config["model"]["inducing"] == [16, 32]
    assert config["training"]["schedule"] == "cosine"
    machine.unlink()
    succeed("resume", tmp_path / "run", "--epochs", 2, "-q")
    succeed("evaluate", tmp_path / "run")
    assert "ok" in succeed("verify", tmp_path / "run").out


def test_training_refuses_what_does_not_fit(photos, tmp_path):
    run = ["-q", "-o", tmp_path / "run"]
    assert "--channels 1" in fail("train", photos, "--from", "digits", *run)
    message = fail("train", photos, "--start-from", "digits", *PHOTO, *run)
    for part in ("inducing is (16, 32), not (8,)", "whitening is 'scale', not 'none'", "--from"):
        assert part in message
    assert not (tmp_path / "run").exists()

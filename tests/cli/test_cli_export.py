"""``export``, and ``predict`` from a file."""

import json

import numpy as np
import pytest
import torch
from cli_helpers import PHOTO, fail, succeed
from PIL import Image

import convdkm as dkm
from convdkm.data.whitening import Standardise
from convdkm.training.run import Run


@pytest.fixture(scope="module")
def exported(digits_run, tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "digits.safetensors"
    outcome = succeed("export", digits_run, path)
    assert "mean, variance, log_probs, expected_entropy" in outcome.err
    return path


def digits(count):
    return dkm.data.load_digits().test_images[:count]


def test_a_file_takes_images_as_they_were_loaded(digits_run, exported):
    images = digits(9)
    expected = Run.open(digits_run).predict(images)
    predictor = dkm.load_predictor(exported)
    assert predictor.class_names == tuple("0123456789")
    assert predictor.sample_shape == (1, 8, 8)
    actual = predictor.predict(torch.as_tensor(images).float())
    torch.testing.assert_close(actual.log_probs, expected.log_probs, rtol=1e-4, atol=1e-5)


def test_onnx(photo_run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "photos.onnx"
    succeed("export", photo_run, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
    assert names == ["cat", "dog [big]"]
    images = np.random.default_rng(0).random((3, 3, 8, 10), dtype=np.float32)
    log_probs = session.run(["log_probs"], {"images": images})[0]
    expected = Run.open(photo_run).predict(images).log_probs
    np.testing.assert_allclose(log_probs, expected.numpy(), rtol=1e-4, atol=1e-4)


def test_torch_without_the_library(digits_run, tmp_path):
    path = tmp_path / "digits.pt2"
    succeed("export", digits_run, path)
    extra = {"convdkm.json": ""}
    program = torch.export.load(path, extra_files=extra)
    about = json.loads(extra["convdkm.json"])
    assert json.loads(about["class_names"]) == list("0123456789")
    images = torch.as_tensor(digits(3)).float()
    log_probs = program.module()(images)[2]
    expected = Run.open(digits_run).predict(images).log_probs
    torch.testing.assert_close(log_probs, expected, rtol=1e-4, atol=1e-4)


def test_predictions_from_a_file_are_those_of_the_run(photo_run, photos, tmp_path):
    path = tmp_path / "photos.safetensors"
    succeed("export", photo_run, path)
    rows = [
        json.loads(succeed("predict", source, photos / "cat", "--format", "json").out)
        for source in (photo_run, path)
    ]
    assert [row["class"] for row in rows[0]] == [row["class"] for row in rows[1]]
    for one, other in zip(*rows, strict=True):
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-4)


def test_what_is_wrong_is_said(digits_run, exported, tmp_path, photos):
    assert ".onnx, .pt2, .safetensors" in fail("export", digits_run, tmp_path / "digits.pickle")
    assert "--force" in fail("export", digits_run, exported)
    succeed("export", digits_run, exported, "--force")
    (tmp_path / "folder.onnx").mkdir()
    assert "is a folder" in fail("export", digits_run, tmp_path / "folder.onnx")
    assert "is not the folder of a run" in fail("export", tmp_path, tmp_path / "digits.onnx")
    (tmp_path / "note.txt").write_text("not a machine")
    assert "no safetensors file" in fail("predict", tmp_path / "note.txt", photos)


def test_statistics_of_the_batch(arrays, tmp_path):
    folder, path = tmp_path / "run", tmp_path / "shades.safetensors"
    options = ["--statistics", "batch", "--whitening", "standardise", "--epochs", 1]
    options += ["--views", "one"]
    succeed(
        "train",
        arrays,
        *PHOTO[:2],
        "--crop",
        1,
        "--inducing",
        6,
        "--blocks",
        1,
        *options,
        "-o",
        folder,
    )
    assert "--deterministic" in fail("export", folder, path)
    assert not path.exists()
    succeed("export", folder, path, "--deterministic")
    images = torch.rand(4, 1, 8, 8)
    run = Run.open(folder)
    assert isinstance(run.whitening, Standardise)
    actual = dkm.load_predictor(path).predict(images)
    expected = run.model.folded(deterministic=True).predict(run.whitening(images))
    torch.testing.assert_close(actual.log_probs, expected.log_probs, rtol=1e-4, atol=1e-5)


def test_several_views(digits_run, exported, tmp_path):
    path = tmp_path / "several.safetensors"
    succeed("export", digits_run, path, "--views", "shifts")
    assert dkm.load_predictor(path).views == "shifts"
    images = torch.as_tensor(digits(4)).float()
    expected = Run.open(digits_run).predict(images, views="shifts").log_probs
    actual = dkm.load_predictor(path).predict(images).log_probs
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    Image.new("L", (8, 8), 90).save(tmp_path / "grey.png")
    sources = ([path], [exported, "--views", "shifts"], [digits_run, "--views", "shifts"])
    rows = [
        json.loads(succeed("predict", source, tmp_path / "grey.png", "-f", "json", *more).out)[0]
        for source, *more in (*sources, [path, "--views", "one"])
    ]
    assert [
        row["probability"] == pytest.approx(rows[0]["probability"], abs=1e-4) for row in rows
    ] == [
        True,
        True,
        True,
        False,
    ]
    scored = json.loads(succeed("evaluate", digits_run, "--views", "shifts", "--json").out)
    assert scored["views"] == 3
    assert "one" in fail("evaluate", digits_run, "--views", "all")

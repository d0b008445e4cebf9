"""Predictors in other programs: the same predictions, for batches of any size."""

import json

import numpy as np
import pytest
import torch
from folded_machines import machine

import convdkm as dkm
from convdkm.predicting import exporting

onnxruntime = pytest.importorskip("onnxruntime")

SIZES = (1, 3, 17)
EXPORTED = ("pooling", "vectors, normalised")
IN_ONNX = (
    "small published",
    "small centred",
    "vector classes",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("pooling", "small 3-D", "convex")),
)


def batches(name):
    """The machine, and batches of every size, one of them with a black image."""
    model, images = machine(name)
    many = images.repeat(3, *(1,) * (images.ndim - 1))
    many[2] = 0
    return model, [many[:size] for size in SIZES]


def assert_same(tensors, predictor, expected, tolerance):
    for name, tensor in zip(predictor.output_names, tensors, strict=True):
        wanted = getattr(expected, name).numpy()
        np.testing.assert_allclose(np.asarray(tensor), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_program(name):
    model, parts = batches(name)
    predictor = model.folded()
    program = predictor.export(tuple(parts[0].shape[1:])).module()
    for part in parts:
        assert_same(program(part), predictor, model.predict(part), 1e-5)


@pytest.mark.parametrize("name", IN_ONNX)
def test_onnx(name, tmp_path):
    model, parts = batches(name)
    predictor = model.folded()
    predictor.class_names = ("a", "b", "ψ")
    path = tmp_path / "machine.onnx"
    predictor.save_onnx(path, tuple(parts[0].shape[1:]))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["images"]
    assert tuple(each.name for each in session.get_outputs()) == predictor.output_names
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["class_names"]) == ["a", "b", "ψ"]
    for part in parts:
        outputs = session.run(None, {"images": part.numpy()})
        assert_same(outputs, predictor, model.predict(part), 1e-4)
    assert [each.name for each in tmp_path.iterdir()] == ["machine.onnx"]


def test_the_size_of_the_images_has_to_be_known():
    predictor = machine("plain")[0].folded()
    for shape in (None, (3, 6, 5), (2, 6), (2, 0, 5)):
        with pytest.raises(dkm.InvalidInputError, match=r"fit \(2, any, any\).*image_shape="):
            predictor.export(shape)


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(dkm.InvalidInputError, match=r"onnx and onnxscript.*pip install"):
        machine("plain")[0].folded().save_onnx(tmp_path / "machine.onnx", (2, 6, 5))


def test_statistics_of_the_batch_cannot_be_exported(tmp_path):
    model = dkm.resnet(2, 3, (5,), (1,), **{**dkm.PUBLISHED, "strides": (1,)})
    predictor = model.initialise(torch.randn(9, 2, 6, 5), seed=0).folded()
    for export in (predictor.export, lambda: predictor.save_onnx(tmp_path / "machine.onnx")):
        with pytest.raises(dkm.InvalidInputError, match=r"statistics='batch'.*calibrate"):
            export()

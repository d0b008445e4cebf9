"""Predictors as files: whole, without pickle, and without the machine."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from folded_machines import MACHINES, machine
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

import convdkm as dkm
from convdkm.errors import CannotWriteError
from convdkm.predicting import PredictorFileError
from damage import rewrite, unnoticed_flips


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_loaded_is_what_was_saved(name, tmp_path):
    model, images = machine(name)
    predictor = model.folded()
    predictor.save(tmp_path / "machine.safetensors")
    loaded = dkm.load_predictor(tmp_path / "machine.safetensors")
    expected, actual = predictor.predict(images), loaded.predict(images)
    for field, value in vars(expected).items():
        assert value is None or torch.equal(getattr(actual, field), value)
    assert loaded.description() == predictor.description()
    assert [path.name for path in tmp_path.iterdir()] == ["machine.safetensors"]


def test_names_and_shapes_are_kept(tmp_path):
    predictor = machine("plain", torch.float64)[0].folded()
    predictor.class_names, predictor.sample_shape = ("cat", "ψ", "dog"), (2, 6, 5)
    predictor.save(tmp_path / "machine.safetensors")
    loaded = dkm.load_predictor(str(tmp_path / "machine.safetensors"))
    assert loaded.class_names == ("cat", "ψ", "dog")
    assert loaded.sample_shape == (2, 6, 5)
    assert loaded.dtype == torch.float64
    with pytest.raises(dkm.InvalidInputError, match=r"shape \(N, 2, 6, 5\)"):
        loaded.predict(torch.randn(2, 2, 6, 6))


def test_the_machine_is_not_needed_to_load(tmp_path):
    model, images = machine("published")
    model.folded().save(tmp_path / "machine.safetensors")
    code = """
import sys, torch, convdkm
predictor = convdkm.load_predictor(sys.argv[1])
assert "convdkm.model" not in sys.modules and "convdkm.architectures" not in sys.modules
print(predictor.predict(torch.ones(1, 2, 6, 5)).log_probs[0].tolist())
"""
    path = str(tmp_path / "machine.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    expected = model.predict(torch.ones_like(images[:1])).log_probs[0]
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), expected)


def test_files_with_the_nodes_of_older_versions_are_read(tmp_path):
    model, images = machine("published")
    path = tmp_path / "machine.safetensors"
    model.folded().save(path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(file.metadata()["convdkm-predictor"])
    assert header["predictor"]["parts"]["outcome"]["settings"]["samples"] == 64
    header["predictor"]["parts"]["outcome"] = {
        "kind": "FoldedCategorical",
        "settings": {},
        "parts": {},
    }
    del header["predictor"]["tensors"], header["predictor"]["parts"]["before"]
    tensors["outcome.nodes"] = torch.randn(64, 3)
    save_file(tensors, path, metadata={"convdkm-predictor": json.dumps(header)})
    loaded = dkm.load_predictor(path)
    torch.testing.assert_close(loaded.predict(images).probs, model.predict(images).probs)
    assert loaded.description() == model.folded().description()


GOLDEN = Path(__file__).parent.parent / "golden" / "predictors"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.safetensors")), ids=lambda path: path.stem)
def test_files_of_an_earlier_version_are_read(path):
    """See tests/golden/README.md."""
    expected = np.load(GOLDEN / "expected.npz")
    predictor = dkm.load_predictor(path)
    assert predictor.class_names == ("a", "b", "c")
    assert {buffer.dtype for buffer in predictor.head.buffers()} == {torch.float32}
    values = predictor(torch.from_numpy(expected[f"{path.stem}/images"]))
    for name, value in zip(predictor.output_names, values, strict=True):
        wanted = torch.from_numpy(expected[f"{path.stem}/{name}"])
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-6)


def test_what_was_read_from_an_earlier_version_can_be_written(tmp_path):
    expected = np.load(GOLDEN / "expected.npz")
    predictor = dkm.load_predictor(GOLDEN / "everything.safetensors")
    predictor.save(tmp_path / "machine.safetensors")
    images = torch.from_numpy(expected["everything/images"])
    loaded = dkm.load_predictor(tmp_path / "machine.safetensors")
    assert torch.equal(loaded(images)[2], predictor(images)[2])


def test_convolutions_of_older_versions_are_read(tmp_path):
    """They had one kernel alone, and no name for it."""
    path = Path(shutil.copy(GOLDEN / "everything.safetensors", tmp_path))
    before = dkm.load_predictor(path)

    def older(part):
        for key, each in part["parts"].items():
            part["parts"][key] = older(each)
        if part["kind"] == "FoldedAngularConv" and not part["parts"]["kernel"]["parts"]:
            return {**part, "kind": "FoldedReluConv", "parts": {}}
        return part

    def change(header, _):
        older(header["predictor"])
        assert "FoldedReluConv" in str(header)

    rewrite(path, change, "convdkm-predictor")
    images = torch.randn(3, 2, 6, 5)
    assert torch.equal(dkm.load_predictor(path)(images)[0], before(images)[0])


# -- files that are none -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "machine.safetensors"
    machine("plain")[0].folded().save(path)
    return path


def complaint(path):
    with pytest.raises(PredictorFileError) as caught:
        dkm.load_predictor(path)
    return str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_file_that_was_cut_short(saved, tmp_path, share):
    content = saved.read_bytes()
    path = tmp_path / "cut.safetensors"
    path.write_bytes(content[: int(share * len(content))])
    assert "cut short" in complaint(path)


@pytest.mark.parametrize("part", ["header", "tensors"])
def test_a_flipped_bit_never_passes(saved, tmp_path, part):
    path = shutil.copy(saved, tmp_path)
    assert unnoticed_flips(Path(path), dkm.load_predictor, PredictorFileError, 60, part) == []


def test_damage_to_a_file_without_a_digest_has_the_same_error(saved, tmp_path):
    path = Path(shutil.copy(saved, tmp_path))
    rewrite(path, key="convdkm-predictor")
    dkm.load_predictor(path)
    flips = unnoticed_flips(path, dkm.load_predictor, PredictorFileError, 150, "header")
    assert len(flips) < 50


def test_a_full_disk_leaves_the_old_file(saved, tmp_path, monkeypatch):
    path = Path(shutil.copy(saved, tmp_path))

    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("convdkm.storage.tensor_file.save_file", full)
    with pytest.raises(CannotWriteError, match="cannot be written: No space left"):
        machine("plain")[0].folded().save(path)
    assert path.read_bytes() == saved.read_bytes()


def test_a_file_of_something_else(tmp_path):
    assert "there is no file" in complaint(tmp_path / "nowhere.safetensors")
    (tmp_path / "text.safetensors").write_text("hello, this is a text and no machine at all")
    assert "no safetensors file" in complaint(tmp_path / "text.safetensors")
    save_file({"a": torch.ones(2)}, tmp_path / "other.safetensors")
    assert "is not a predictor" in complaint(tmp_path / "other.safetensors")
    save_file({"a": torch.ones(2)}, tmp_path / "run.safetensors", metadata={"convdkm": "{}"})
    assert "convdkm export RUN FILE" in complaint(tmp_path / "run.safetensors")


def changed(saved, tmp_path, change):
    path = Path(shutil.copy(saved, tmp_path / "changed.safetensors"))
    rewrite(path, change, "convdkm-predictor")
    return complaint(path)


def test_a_file_of_another_version(saved, tmp_path):
    text = changed(saved, tmp_path, lambda header, _: header.update(format=99))
    assert "format 99" in text
    assert "upgrade convdkm" in text
    assert "which version" in changed(saved, tmp_path, lambda header, _: header.pop("format"))


def test_a_file_that_describes_no_predictor(saved, tmp_path):
    def rename(header, _):
        header["predictor"]["parts"]["body"]["kind"] = "FoldedMagic"

    def replace(header, _):
        header["predictor"] = {"kind": "FoldedList", "settings": {}, "parts": {}}

    assert "FoldedMagic" in changed(saved, tmp_path, rename)
    assert "FoldedList" in changed(saved, tmp_path, replace)
    assert "describes no predictor" in changed(
        saved, tmp_path, lambda _, tensors: tensors.pop("head.mean")
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("class_names", 3), ("class_names", ["cat", 3]), ("sample_shape", ["8"]), ("parts", [])],
)
def test_values_of_another_kind(saved, tmp_path, name, value):
    def change(header, _):
        place = header["predictor"] if name == "parts" else header["predictor"]["settings"]
        place[name] = value

    assert "describes no predictor" in changed(saved, tmp_path, change)
    assert "which version" in changed(saved, tmp_path, lambda header, _: header.update(format="1"))


def test_what_cannot_be_folded_cannot_be_saved(tmp_path):
    model = dkm.resnet(2, 3, (5,), (1,), statistics="batch")
    predictor = model.initialise(torch.randn(9, 2, 6, 5), seed=0).folded()
    with pytest.raises(dkm.InvalidInputError, match="statistics of each batch"):
        predictor.save(tmp_path / "machine.safetensors")
    assert not list(tmp_path.iterdir())

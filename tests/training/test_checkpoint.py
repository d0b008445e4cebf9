"""Checkpoints are whole, hold no code, and fall back to the one before."""

import json
import os
import random

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from convdkm.errors import CannotWriteError
from convdkm.storage.files import replacing, write_json
from convdkm.training.checkpoint import (
    FILES,
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    load_optimiser_tensors,
    optimiser_tensors,
    read_checkpoint,
    write_checkpoint,
)
from damage import cut, flipped_bits, rewrite, unnoticed_flips


def a_checkpoint(value: float = 1.0) -> Checkpoint:
    shared = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "model.a": torch.full((3, 2), value),
        "model.b.c": torch.tensor(True),
        "model.view": shared.T,
        "model.shared": shared,
        "optimiser.0.step": torch.tensor(3.0),
    }
    return Checkpoint(tensors, {"progress": {"step": 3, "best": None}, "name": "ν"})


def test_round_trip(tmp_path):
    before = a_checkpoint()
    write_checkpoint(tmp_path / "x.safetensors", before)
    after = read_checkpoint(tmp_path / "x.safetensors")
    assert set(after.tensors) == set(before.tensors)
    for name, value in before.tensors.items():
        assert torch.equal(after.tensors[name], value)
        assert after.tensors[name].dtype == value.dtype
    assert after.description == {"format": FILES.version, **before.description}
    assert set(after.part("model")) == {"a", "b.c", "view", "shared"}


def test_no_pickle_in_the_file(tmp_path):
    write_checkpoint(tmp_path / "x.safetensors", a_checkpoint())
    content = (tmp_path / "x.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    assert json.loads(header["__metadata__"]["convdkm"])["format"] == FILES.version


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_damaged_file_is_named(tmp_path, keep):
    path = tmp_path / "x.safetensors"
    write_checkpoint(path, a_checkpoint())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"x\.safetensors.*damaged or cut short"):
        read_checkpoint(path)


def test_foreign_files_and_versions(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        read_checkpoint(path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="not one of convdkm"):
        read_checkpoint(path)
    save_file({"a": torch.zeros(2)}, path, metadata={"convdkm": '{"format": 99}'})
    with pytest.raises(CheckpointError, match=r"format 99.*upgrade convdkm"):
        read_checkpoint(path)
    save_file({"a": torch.zeros(2)}, path, metadata={"convdkm": "{}"})
    with pytest.raises(CheckpointError, match="which version"):
        read_checkpoint(path)
    path.write_bytes(b"\x80\x04\x95 a pickle, say")
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(path)


@pytest.mark.parametrize("part", ["header", "tensors"])
def test_a_flipped_bit_never_passes(tmp_path, part):
    path = tmp_path / "x.safetensors"
    write_checkpoint(path, a_checkpoint())
    assert unnoticed_flips(path, read_checkpoint, CheckpointError, 150, part) == []
    read_checkpoint(path)


def test_a_flipped_bit_anywhere_falls_back(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(a_checkpoint(1.0))
    store.save(a_checkpoint(2.0))
    for where in flipped_bits(store.path("last"), 100):
        checkpoint, warning = store.load()
        assert checkpoint.tensors["model.a"][0, 0] == 1, where
        assert "last.safetensors" in warning


def test_a_file_without_a_digest_is_read_and_damage_to_it_has_the_same_error(tmp_path):
    path = tmp_path / "x.safetensors"
    write_checkpoint(path, a_checkpoint())
    rewrite(path)
    assert read_checkpoint(path).description["name"] == "ν"
    assert len(unnoticed_flips(path, read_checkpoint, CheckpointError, 300, "header")) < 60


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("progress", [3]),
        ("progress", {"step": "three"}),
        ("progress", {"step": True}),
        ("progress", {"step": 3, "sums": {"images": None}}),
        ("class_names", "cat"),
        ("class_names", ["cat", 1]),
        ("image_shape", [1, 8.5, 8]),
        ("image_shape", None),
        ("own_model", 0),
        ("num_data", "9"),
        ("config", []),
    ],
)
def test_values_of_another_kind_are_named(tmp_path, name, value):
    store = CheckpointStore(tmp_path)
    store.save(a_checkpoint(1.0))
    store.save(a_checkpoint(2.0))
    rewrite(store.path("last"), lambda header, _: header.update({name: value}))
    with pytest.raises(CheckpointError, match=r"last\.safetensors is damaged: .* is wrong"):
        read_checkpoint(store.path("last"))
    assert store.load()[0].tensors["model.a"][0, 0] == 1


@pytest.mark.parametrize("text", ["[" * 100_000, "3", "null", '{"format": 1', '{"format": true}'])
def test_descriptions_that_are_none(tmp_path, text):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(2)}, path, metadata={"convdkm": text})
    with pytest.raises(CheckpointError, match=r"x\.safetensors"):
        read_checkpoint(path)


def test_absurd_headers(tmp_path):
    path = tmp_path / "x.safetensors"
    write_checkpoint(path, a_checkpoint())
    rewrite(path)
    content, generator = path.read_bytes(), random.Random(0)
    for size in (0, 1, 2**31, 2**40, 2**63, 2**64 - 1):
        path.write_bytes(size.to_bytes(8, "little") + content[8:])
        with pytest.raises(CheckpointError, match="damaged or cut short"):
            read_checkpoint(path)
    path.write_bytes(generator.randbytes(4000))
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        read_checkpoint(path)
    shape = content.replace(b'"shape":[3,2]', b'"shape":[9,9]')
    assert shape != content
    path.write_bytes(shape)
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        read_checkpoint(path)


def test_the_store_falls_back_to_the_one_before(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(a_checkpoint(1.0))
    store.save(a_checkpoint(2.0))
    checkpoint, warning = store.load()
    assert warning is None
    assert checkpoint.tensors["model.a"][0, 0] == 2
    cut(store.path("last"))
    checkpoint, warning = store.load()
    assert checkpoint.tensors["model.a"][0, 0] == 1
    assert "last.safetensors" in warning
    assert "going back" in warning
    store.path("last").unlink()
    assert store.load()[0].tensors["model.a"][0, 0] == 1
    cut(store.path("previous"))
    with pytest.raises(CheckpointError, match=r"previous\.safetensors"):
        store.load()


def test_best_is_kept_apart(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(a_checkpoint(5.0), as_best=True)
    store.save(a_checkpoint(1.0))
    assert store.load("best")[0].tensors["model.a"][0, 0] == 5
    cut(store.path("best"))
    with pytest.raises(CheckpointError, match=r"best\.safetensors.*; last can be read"):
        store.load("best")


def test_which_others_can_be_read_is_said(tmp_path):
    store = CheckpointStore(tmp_path)
    for value in (1.0, 2.0):
        store.save(a_checkpoint(value))
    store.save(a_checkpoint(1.5), as_best=True)
    cut(store.path("last"))
    cut(store.path("previous"))
    words = r"last\.safetensors.*previous\.safetensors.*; best can be read: --checkpoint best"
    with pytest.raises(CheckpointError, match=words):
        store.load()
    cut(store.path("best"))
    with pytest.raises(CheckpointError) as caught:
        store.load()
    assert "can be read" not in str(caught.value)


def test_what_a_checkpoint_is_refused_for_counts_as_damage(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(a_checkpoint(1.0))
    store.save(a_checkpoint(2.0))

    def use(checkpoint):
        if checkpoint.tensors["model.a"][0, 0] == 2:
            checkpoint.load_into(torch.nn.Linear(2, 3), "model")
        return "made of the first"

    found, warning = store.load(use=use)
    assert found == "made of the first"
    assert "does not belong to these settings" in warning


def test_a_damaged_checkpoint_does_not_take_the_place_of_one_that_is_whole(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(a_checkpoint(1.0))
    store.save(a_checkpoint(2.0))
    cut(store.path("last"))
    CheckpointStore(tmp_path).save(a_checkpoint(3.0))
    assert store.load("last")[0].tensors["model.a"][0, 0] == 3
    assert store.load("previous")[0].tensors["model.a"][0, 0] == 1


FULL = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize(("what", "failure"), [("save_file", FULL), ("fsync", OSError(28, "full"))])
def test_a_full_disk_leaves_the_old_checkpoints(tmp_path, monkeypatch, what, failure, links):
    def fail(*_, **__):
        raise failure

    def no_links(*_):
        raise OSError("no links here")

    store = CheckpointStore(tmp_path)
    store.save(a_checkpoint(1.0))
    store.save(a_checkpoint(2.0))
    if not links:
        monkeypatch.setattr("os.link", no_links)
    place = "convdkm.storage.tensor_file.save_file" if what == "save_file" else "os.fsync"
    with monkeypatch.context() as patched:
        patched.setattr(place, fail)
        with pytest.raises(CannotWriteError, match=r"last\.safetensors cannot be written: .*free"):
            store.save(a_checkpoint(3.0))
    assert store.load("last")[0].tensors["model.a"][0, 0] == 2
    assert store.load("previous")[0].tensors["model.a"][0, 0] == 1
    assert sorted(each.stem for each in tmp_path.iterdir()) == ["last", "previous"]
    store.save(a_checkpoint(3.0))
    assert store.load("last")[0].tensors["model.a"][0, 0] == 3


def test_without_hard_links(tmp_path, monkeypatch):
    def refuse(*paths):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    store = CheckpointStore(tmp_path)
    store.save(a_checkpoint(1.0))
    store.save(a_checkpoint(2.0))
    assert store.load("last")[0].tensors["model.a"][0, 0] == 2
    assert store.load("previous")[0].tensors["model.a"][0, 0] == 1


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(OSError, match="disk full"), replacing(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise OSError("disk full")
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_optimiser_state_round_trip():
    def pair():
        parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2, 2))]
        return parameters, torch.optim.Adam(parameters, lr=0.1)

    def step(parameters, optimiser):
        optimiser.zero_grad()
        sum((p**3).sum() for p in parameters).backward()
        optimiser.step()

    parameters, optimiser = pair()
    step(parameters, optimiser)
    tensors = {name: value.clone() for name, value in optimiser_tensors(optimiser).items()}
    others, fresh = pair()
    with torch.no_grad():
        for own, other in zip(others, parameters, strict=True):
            own.copy_(other)
    load_optimiser_tensors(fresh, tensors)
    step(parameters, optimiser)
    step(others, fresh)
    for own, other in zip(others, parameters, strict=True):
        assert torch.equal(own, other)
    small = torch.optim.Adam([torch.nn.Parameter(torch.ones(3))])
    with pytest.raises(CheckpointError, match="2 parameters, the model has 1"):
        load_optimiser_tensors(small, tensors)
    other = {name: torch.ones(5) if "exp_avg" in name else x for name, x in tensors.items()}
    for wrong in (other, dict(list(tensors.items())[1:])):
        with pytest.raises(CheckpointError, match="does not fit parameter"):
            load_optimiser_tensors(pair()[1], wrong)

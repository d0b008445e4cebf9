"""Checkpoints are whole, hold no code, and fall back to the one before."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from convdkm.files import replacing, write_json
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


def cut_in_half(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


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


def test_the_store_falls_back_to_the_one_before(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(a_checkpoint(1.0))
    store.save(a_checkpoint(2.0))
    checkpoint, warning = store.load()
    assert warning is None
    assert checkpoint.tensors["model.a"][0, 0] == 2
    cut_in_half(store.path("last"))
    checkpoint, warning = store.load()
    assert checkpoint.tensors["model.a"][0, 0] == 1
    assert "last.safetensors" in warning
    assert "going back" in warning
    store.path("last").unlink()
    assert store.load()[0].tensors["model.a"][0, 0] == 1
    cut_in_half(store.path("previous"))
    with pytest.raises(CheckpointError, match=r"previous\.safetensors"):
        store.load()


def test_best_is_kept_apart(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(a_checkpoint(5.0), as_best=True)
    store.save(a_checkpoint(1.0))
    assert store.load("best")[0].tensors["model.a"][0, 0] == 5
    cut_in_half(store.path("best"))
    with pytest.raises(CheckpointError):
        store.load("best")


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

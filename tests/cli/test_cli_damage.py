"""Runs whose checkpoints are damaged, in whatever way."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from cli_helpers import fail, succeed

from convdkm.training.run import Run
from damage import cut, flipped_bits, rewrite

LAST = "checkpoints/last.safetensors"


@pytest.fixture
def damaged(digits_run, tmp_path) -> Path:
    """A run, not yet finished, whose last checkpoint is cut in half."""
    folder = shutil.copytree(digits_run, tmp_path / "run")
    (folder / "metrics.json").unlink()
    cut(folder / LAST)
    return folder


def figures(folder: Path) -> dict[str, float]:
    values = json.loads((folder / "metrics.json").read_text())
    del values["seconds"], values["cpu_seconds"]
    return values


def test_export_and_report_go_back_as_well(damaged, tmp_path):
    outcome = succeed("export", damaged, tmp_path / "machine.safetensors")
    assert "going back to the checkpoint before" in outcome.err
    outcome = succeed("report", damaged, "-o", tmp_path / "page.html")
    assert "going back to the checkpoint before" in outcome.err
    assert "going back to the checkpoint before" in (tmp_path / "page.html").read_text()


def test_two_damaged_checkpoints_are_an_error(damaged):
    cut(damaged / "checkpoints" / "previous.safetensors")
    for command in ("show", "evaluate", "resume"):
        message = fail(command, damaged)
        assert "damaged or cut short" in message
        assert "best can be read: --checkpoint best" in message
    succeed("evaluate", damaged, "--checkpoint", "best")
    cut(damaged / "checkpoints" / "best.safetensors")
    assert "can be read" not in fail("evaluate", damaged)
    assert "best.safetensors" in fail("evaluate", damaged, "--checkpoint", "best")


def wrong(change):
    def damage(path):
        rewrite(path, change)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: next(flipped_bits(path, 1, "tensors")),
        lambda path: next(flipped_bits(path, 1, "header")),
        wrong(lambda header, _: header.pop("progress")),
        wrong(lambda header, _: header["progress"].update(stdp=3)),
        wrong(lambda header, _: header.pop("image_shape")),
        wrong(lambda header, _: header.update(image_shape=[])),
        wrong(lambda header, _: header["class_names"].pop()),
        wrong(lambda header, _: header.pop("own_model")),
        wrong(lambda _, tensors: tensors.pop("model.head.mean")),
        wrong(lambda _, tensors: tensors.update({"model.head.mean": torch.zeros(3)})),
        lambda path: path.write_bytes((path.parents[1] / "steps.csv").read_bytes()),
    ],
)
def test_damage_of_any_kind_falls_back(digits_run, tmp_path, damage):
    folder = shutil.copytree(digits_run, tmp_path / "run")
    damage(folder / LAST)
    run = Run.open(folder)
    assert "last.safetensors" in run.warning
    assert "going back to the checkpoint before" in run.warning
    assert run.step == Run.open(digits_run, "previous").step


def test_an_optimiser_that_is_damaged_falls_back(damaged, digits_run):
    last = Path(shutil.copy(digits_run / LAST, damaged / LAST))
    rewrite(last, lambda _, tensors: tensors.pop("optimiser.3.exp_avg"))
    outcome = succeed("resume", damaged, "-q")
    assert "going back to the checkpoint before" in outcome.err
    assert figures(damaged) == figures(digits_run)


def test_a_predictor_in_the_place_of_a_checkpoint(damaged, tmp_path):
    succeed("export", damaged, tmp_path / "machine.safetensors")
    for name in ("last", "previous"):
        shutil.copy(
            tmp_path / "machine.safetensors", damaged / "checkpoints" / f"{name}.safetensors"
        )
    assert "is not a checkpoint of a run: it is a predictor" in fail("evaluate", damaged)

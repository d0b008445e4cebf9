"""A run made by a task: from the beginning, from a checkpoint, or not at all."""

import pytest
from sweep_folders import planned

from convdkm.lab.studies.sweeps.planning import Scale
from convdkm.lab.studies.sweeps.specification import METRICS
from convdkm.lab.studies.sweeps.sweep import RunTask
from convdkm.training.folder import MARKER

TINY = Scale(preset="quick", epochs=2, train_size=60, inducing=(8, 8))


@pytest.fixture
def task(tmp_path):
    place, runs = planned(tmp_path / "out", "likelihood", ("digits",), 1, TINY)
    run = runs["gaussian", "digits"][0]
    return RunTask(run.title, str(place.of(run)), run.config)


def test_a_run_goes_on_from_its_checkpoint_to_the_same_figures(task, tmp_path, monkeypatch):
    whole = RunTask(task.name, str(tmp_path / "whole"), task.config)()
    monkeypatch.setattr("convdkm.lab.studies.sweeps.sweep.asked_to_stop", lambda: True)
    assert task() is None
    monkeypatch.undo()
    parts = task()
    assert {name: parts[name] for name in METRICS} == {name: whole[name] for name in METRICS}
    assert task() == parts, "a finished run is left as it is"


def test_a_run_that_had_not_come_to_a_checkpoint_is_begun_anew(task, tmp_path):
    folder = tmp_path / "out" / "digits" / "selection" / "likelihood-gaussian" / "seed-0"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text("{}")
    (folder / MARKER).touch()
    assert task()["epochs"] == 2

"""Several processes make the steps that one would make, and outlive each other."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from parallel import (
    CASES,
    PIECES,
    RECIPE,
    finished,
    one_step,
    require_same,
    require_same_records,
    require_same_runs,
    rows,
    run_with_a_failure,
    step_of,
    torchrun,
    trainer_of,
)

from convdkm.cli import run as run_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo on Linux")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Every case, worked out by two processes; their results by rank."""
    folder = tmp_path_factory.mktemp("shared")
    _, err = finished(torchrun(trainer_of.__code__.co_filename, folder))
    assert "Warning" not in err
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_the_gradients_of_one(shared, name):
    whole = one_step(trainer_of(name))
    for result in shared:
        require_same(result[name], whole)


@pytest.mark.parametrize("name", PIECES)
def test_so_they_do_in_pieces(shared, name):
    whole = one_step(trainer_of(name))
    for result in shared:
        require_same(result[f"{name}, in pieces"], whole)


def test_where_one_fails_all_go_back(shared):
    first, second = (each["failing"] for each in shared)
    for name, value in first["state"].items():
        assert torch.equal(value, second["state"][name]), name
    assert len(first["messages"]) == 1
    assert "step 2 was not taken: another process failed" in first["messages"][0]
    alone = run_with_a_failure(trainer_of("batch", epochs=4))
    for kind in ("steps", "epochs"):
        require_same_records(first[kind], alone[kind])


# -- the program -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run by one process: 6 steps an epoch, and none by the clock saved in between."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert run_command(["train", *RECIPE, "-o", str(folder)]) == 0
    return folder


def test_a_run_by_two_processes_is_that_of_one(alone, tmp_path):
    folder = tmp_path / "run"
    out, err = finished(torchrun("-m", "convdkm", "train", *RECIPE, "-o", folder))
    assert out.splitlines()[-1] == str(folder)
    assert "Warning" not in err
    require_same_runs(folder, alone)


def process_of(rank, launcher):
    """The id of a process that torchrun started."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    for child in children:
        if f"\0RANK={rank}\0".encode() in Path(f"/proc/{child}/environ").read_bytes():
            return int(child)
    raise AssertionError(f"no process of rank {rank} among {children}")


def killed(rank, folder, after):
    """The output of a run one of whose two processes was killed after some steps."""
    launcher = torchrun("-m", "convdkm", "train", *RECIPE, "-o", folder)
    end = time.monotonic() + 90
    try:
        while not (folder / "steps.csv").exists() or len(rows(folder / "steps.csv")) < after:
            assert launcher.poll() is None, launcher.communicate()[1]
            assert time.monotonic() < end, "no step in 90 s"
            time.sleep(0.01)
        os.kill(process_of(rank, launcher), signal.SIGKILL)
        out, err = launcher.communicate(timeout=60)
    finally:
        launcher.kill()
    assert launcher.returncode != 0
    assert not (folder / "metrics.json").exists()
    return out, err


def test_a_killed_process_ends_the_run_with_all_saved(alone, tmp_path):
    folder = tmp_path / "run"
    _, err = killed(1, folder, after=8)
    done = len(rows(folder / "steps.csv"))
    assert 8 <= done < 18
    assert step_of(folder) == done
    assert f"Error: training stopped after step {done}, which is saved" in err
    assert "another process is gone" in err
    assert f"convdkm resume {folder}" in err
    assert run_command(["resume", str(folder), "-q"]) == 0
    require_same_runs(folder, alone)


def test_if_the_leader_is_killed_the_run_goes_on_from_its_checkpoint(alone, tmp_path):
    folder = tmp_path / "run"
    _, err = killed(0, folder, after=8)
    assert step_of(folder) in (6, 12)
    assert f"convdkm resume {folder}" in err
    finished(torchrun("-m", "convdkm", "resume", folder, "-q"))
    require_same_runs(folder, alone)

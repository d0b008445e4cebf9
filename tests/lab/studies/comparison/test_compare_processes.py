"""Trials in processes of their own: killed ones, stopped ones, and those that go on."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from convdkm.lab.studies.comparison.comparison import launcher_for
from convdkm.lab.studies.comparison.folder import ComparisonFolder, PlannedTrial
from convdkm.lab.studies.launchers.local import LocalLauncher

LONG, SHORT = PlannedTrial("nngp-gap", 520, 0), PlannedTrial("ckn", 520, 0)
SECONDS = 120


def started(*arguments):
    """The program in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "convdkm", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_a_block(folder, alive, trial=LONG):
    """Until the first block of a long trial is on disk."""
    end = time.monotonic() + SECONDS
    kernel = folder.file(trial, "kernel")
    while not any(kernel.glob("block-*.npy")):
        assert alive()
        assert time.monotonic() < end
        time.sleep(0.01)


def command(bright, out, methods="nngp-gap", size=520):
    options = ["--methods", methods, "--train-size", size, "--test-size", 10]
    return ["compare", bright, *options, "--seeds", 1, "--budget", "inf", "-f", "none", "-o", out]


def test_a_killed_comparison_goes_on_with_the_blocks_it_had(bright, tmp_path, call, here):
    folder, trial = ComparisonFolder(tmp_path / "out"), PlannedTrial("nngp-gap", 400, 0)
    process = started(*command(bright, folder.path, size=400))
    wait_for_a_block(folder, lambda: process.poll() is None, trial)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=SECONDS)
    assert folder.status(trial).state == "missing"
    kept = list(folder.file(trial, "kernel").glob("block-*.npy"))
    assert 1 <= len(kept) < 3

    code, text, err = call(*command(bright, folder.path, size=400))
    assert code == 0, err
    result = folder.status(trial)
    assert result.resumed
    assert result.metrics["accuracy"] == 1.0
    assert f"{3 - len(kept)} blocks are missing" in text
    assert not folder.file(trial, "kernel").exists()
    assert not (folder.path / "images").exists()
    assert (
        "whose time is not counted: nngp-gap" in (folder.path / "tables/train-400.md").read_text()
    )


def test_a_trial_that_is_killed_is_a_failure_and_the_others_go_on(bright, tmp_path, call):
    folder = ComparisonFolder(tmp_path / "out")
    killed = []

    def kill():
        wait_for_a_block(folder, lambda: True)
        for child in multiprocessing.active_children():
            killed.append(child.pid)
            child.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    code, text, err = call(*command(bright, folder.path, "nngp-gap,ckn"), "--threads", 1)
    killer.join()
    assert len(killed) == 1
    assert code == 1
    assert "was ended by SIGKILL; was there too little memory?" in err.replace("\n", " ")
    assert "1 of 2 trials finished, 1 failed" in text
    assert folder.status(LONG).state == "failed"
    assert any(folder.file(LONG, "kernel").glob("block-*.npy"))
    other = folder.status(SHORT)
    assert other.state == "finished"
    assert other.notes[-1] in folder.file(SHORT, "log").read_text()
    assert other.environment["threads"] == 1


def test_ctrl_c_says_how_to_go_on(bright, tmp_path):
    folder = ComparisonFolder(tmp_path / "out")
    process = started(*command(bright, folder.path))
    wait_for_a_block(folder, lambda: process.poll() is None)
    os.killpg(process.pid, signal.SIGINT)
    text, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "Stopping; the trial under way is given up" in err
    assert "Traceback" not in err
    assert "Stopped with 0 of 1 trials finished. Go on with\n  convdkm compare" in text
    assert text.splitlines()[-1] == str(folder.path)
    assert folder.status(LONG).state == "missing"
    assert any(folder.file(LONG, "kernel").glob("block-*.npy"))


@pytest.mark.parametrize(
    ("asked", "variable", "threads"), [(None, "3", 3), (2, "3", 2), (None, "many", None)]
)
def test_threads_of_a_trial(monkeypatch, tmp_path, asked, variable, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    launcher = launcher_for("local", ComparisonFolder(tmp_path), threads=asked)
    everything = LocalLauncher(1, device="cpu").threads
    assert launcher.threads == (threads or everything)
    assert launcher.at_once == 1
    assert launcher.retries == 0

"""Runs that are stopped, killed or damaged, and what goes on from there."""

import csv
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from cli_helpers import QUICK, TINY, call, fail, start, succeed

from convdkm.cli import interrupt as interrupt_module
from convdkm.cli.interrupt import Interrupt

OPTIONS = [*QUICK, *TINY, "--epochs", 3]
CLOCKS = ("seconds", "images_per_second")


@pytest.fixture(scope="module")
def whole(arrays, tmp_path_factory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    succeed("train", arrays, *OPTIONS, "-o", folder, "-q")
    return folder


def metrics(folder: Path) -> dict[str, float]:
    values = json.loads((folder / "metrics.json").read_text())
    del values["seconds"], values["cpu_seconds"]
    return values


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return [
            {name: cell for name, cell in row.items() if name not in CLOCKS}
            for row in csv.DictReader(file)
        ]


def require_same(folder: Path, whole: Path) -> None:
    assert metrics(folder) == metrics(whole)
    for name in ("steps.csv", "epochs.csv", "layers.csv"):
        assert rows(folder / name) == rows(whole / name)


def wait_for_steps(process, steps: int, folder: Path) -> None:
    end = time.monotonic() + 90
    while not (folder / "steps.csv").exists() or len(rows(folder / "steps.csv")) < steps:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "no step in 90 s"
        time.sleep(0.01)


def signalled_after(steps: int, number: int, folder: Path, *arguments):
    """A training process that was sent a signal after so many steps; its code and output."""
    process = start("train", *arguments, "-o", folder, start_new_session=True)
    try:
        wait_for_steps(process, steps, folder)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, err


def test_ctrl_c_saves_and_a_resumed_run_ends_as_if_never_stopped(arrays, whole, tmp_path):
    folder = tmp_path / "a run"
    code, out, err = signalled_after(6, signal.SIGINT, folder, arrays, *OPTIONS)
    assert code == 130
    assert "Traceback" not in err
    assert "Stopping after this step" in err
    *_, command, last = out.splitlines()
    assert last == str(folder)
    assert command == f"  convdkm resume '{folder}'"
    assert not (folder / "metrics.json").exists()
    assert 6 <= len(rows(folder / "steps.csv")) < 12

    resumed = succeed("resume", folder)
    assert "continues after step" in resumed.out
    assert resumed.last_line == str(folder)
    require_same(folder, whole)


# -- before and after the steps --------------------------------------------------------------------

STUCK = """
import ctypes, pathlib, sys, time

import torch

import convdkm.training.sources
from convdkm.cli import main
from convdkm.predicting.predictor import Predictor

stage, mark = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))


def asleep(*_, **__):
    mark.touch()
    time.sleep(60)


def deaf(*_, **__):
    "A function that is not Python's, and that no signal wakes up: a lock that is taken twice."
    mark.touch()
    lock = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(lock)


def slow(self, inputs, predict=Predictor.predict, **options):
    time.sleep(0.3)
    return predict(self, inputs, **options)


if stage == "loading":
    convdkm.training.sources.load_dataset = asleep
elif stage == "whitening":
    torch.linalg.eigh = deaf
elif stage == "initialising":
    convdkm.DeepKernelMachine.initialise = asleep
else:
    Predictor.predict = slow
main()
"""
INT, TERM = signal.SIGINT, signal.SIGTERM


def signalled_in(stage: str, number: int, reached, mark: Path, *arguments):
    """A training process that was sent a signal in a stage; its code, output, and the time."""
    process = start(stage, mark, *arguments, program=("-c", STUCK), start_new_session=True)
    end = time.monotonic() + 90
    try:
        while not reached():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < end, f"{stage} was not reached in 90 s"
            time.sleep(0.05)
        process.send_signal(number)
        sent = time.monotonic()
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, err, time.monotonic() - sent


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        *(("loading", INT), ("loading", TERM), ("initialising", INT)),
        *(("whitening", INT), ("whitening", TERM)),
    ],
)
def test_a_signal_before_training_ends_the_program_at_once(arrays, tmp_path, stage, number):
    folder, mark = tmp_path / "run", tmp_path / "mark"
    options = [arrays, *OPTIONS, "--whitening", "zca"]
    code, out, err, seconds = signalled_in(
        stage, number, mark.exists, mark, "train", *options, "-o", folder
    )
    assert code == 128 + number
    assert seconds < 10
    assert "Stopped before training began." in err
    assert "Traceback" not in err
    assert "resume" not in out
    if stage != "whitening":  # where nothing can be tidied up any more
        assert not folder.exists()
    succeed("train", *options, "-o", folder, "-q")


@pytest.mark.parametrize(
    ("moment", "number"), [("after an epoch", TERM), ("at the end", INT), ("at the end", TERM)]
)
def test_a_signal_while_images_are_scored_stops_within_a_batch(
    arrays, whole, tmp_path, moment, number
):
    folder = tmp_path / "run"

    def scores_at_the_end():
        return "scoring 40 test" in text(folder / "log.txt")

    def scores_after_an_epoch():
        return len(text(folder / "steps.csv").splitlines()) == 5  # of the four steps of the first

    last = moment == "at the end"
    arguments = [arrays, *OPTIONS, "--evaluation-batch", 4]
    if last:
        arguments += ["--evaluate-every", 0]
    code, out, err, seconds = signalled_in(
        "scoring",
        number,
        scores_at_the_end if last else scores_after_an_epoch,
        tmp_path / "mark",
        *("train", *arguments, "-o", folder),
    )
    assert code == 128 + number
    assert seconds < 10
    assert "Traceback" not in err
    assert "Ctrl-C again stops at once" in err
    assert f"Stopped after step {12 if last else 4}; all is saved" in out
    assert out.splitlines()[-2:] == [f"  convdkm resume {folder}", str(folder)]
    assert not (folder / "metrics.json").exists()

    resumed = succeed("resume", folder)
    assert resumed.last_line == str(folder)
    assert len(rows(folder / "steps.csv")) == 12
    if last:
        assert metrics(folder) == pytest.approx(metrics(whole), rel=1e-6)
    else:
        unbroken = tmp_path / "unbroken"
        succeed("train", *arguments, "-o", unbroken, "-q")
        require_same(folder, unbroken)


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_killed_run_goes_on_from_its_last_checkpoint(arrays, whole, tmp_path):
    folder = tmp_path / "run"
    code, _, _ = signalled_after(6, signal.SIGKILL, folder, arrays, *OPTIONS)
    assert code == -signal.SIGKILL
    assert succeed("resume", folder, "--quiet").last_line == str(folder)
    require_same(folder, whole)


def test_nobody_else_writes_while_a_run_is_trained(arrays, whole, tmp_path):
    folder = tmp_path / "run"
    process = start("train", arrays, *OPTIONS, "-o", folder, "-q", start_new_session=True)
    try:
        wait_for_steps(process, 2, folder)
        process.send_signal(signal.SIGSTOP)  # so that it is surely still at work
        for command in (
            ("resume", folder),
            ("train", arrays, *OPTIONS, "-o", folder, "--overwrite"),
        ):
            message = fail(*command)
            assert f"is being written by process {process.pid} on" in message
        assert "--overwrite" in fail("train", arrays, *OPTIONS, "-o", folder)
        assert "accuracy" in succeed("evaluate", folder).out
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    finally:
        process.kill()
    require_same(folder, whole)


def test_a_finished_run_is_not_trained_again_unless_asked_for_more(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    outcome = succeed("resume", folder)
    assert "finished: 3 epochs, 12 steps" in outcome.out
    assert "accuracy" in outcome.out
    assert outcome.last_line == str(folder)
    assert (folder / "metrics.json").read_bytes() == (whole / "metrics.json").read_bytes()

    longer = succeed("resume", folder, "--epochs", 4, "-q")
    assert longer.last_line == str(folder)
    assert metrics(folder)["epochs"] == 4
    assert [row["epoch"] for row in rows(folder / "epochs.csv")] == ["1", "2", "3", "4"]
    assert "finished: 4 epochs" in succeed("resume", folder).out


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture
def damaged(whole, tmp_path) -> Path:
    """A run, not yet finished, whose last checkpoint is cut in half."""
    folder = shutil.copytree(whole, tmp_path / "run")
    (folder / "metrics.json").unlink()
    cut(folder / "checkpoints" / "last.safetensors")
    return folder


def test_a_damaged_checkpoint_is_replaced_by_the_one_before(damaged, whole, photos):
    words = ("last.safetensors", "going back to the checkpoint before")
    for command in ("show", "evaluate"):
        outcome = succeed(command, damaged)
        assert all(word in outcome.err for word in words)
        assert len(outcome.err.splitlines()) == 1
    image = photos / "cat" / "0.png"
    outcome = succeed("predict", damaged, image, "--resize", "--format", "json")
    assert all(word in outcome.err for word in words)
    assert json.loads(outcome.out)[0]["image"] == str(image)

    outcome = succeed("resume", damaged, "-q")
    assert all(word in outcome.err for word in words)
    require_same(damaged, whole)


def test_two_damaged_checkpoints_are_an_error(damaged):
    cut(damaged / "checkpoints" / "previous.safetensors")
    for command in ("show", "evaluate", "resume"):
        message = fail(command, damaged)
        assert "damaged or cut short" in message


def test_a_folder_without_a_run_is_an_error(tmp_path):
    for command in ("show", "evaluate", "resume"):
        assert "does not exist" in fail(command, tmp_path / "nothing")
        assert "no config.yaml" in fail(command, tmp_path)
    (tmp_path / "config.yaml").write_text("epochs: 1\n")
    assert "checkpoint" in fail("show", tmp_path)


def test_a_mistake_in_resume_changes_nothing(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    before = (folder / "config.yaml").read_text()
    assert "epochs" in fail("resume", folder, "--epochs", "0")
    assert "cuda:77" in fail("resume", folder, "--epochs", 5, "--device", "cuda:77")
    assert (folder / "config.yaml").read_text() == before


# -- the signals themselves ------------------------------------------------------------------------


def test_a_second_ctrl_c_insists_but_an_echo_does_not(monkeypatch, capfd):
    now = [100.0]
    monkeypatch.setattr(interrupt_module.time, "monotonic", lambda: now[0])
    handler = signal.getsignal(signal.SIGINT)
    with Interrupt("stopping") as interrupt:
        assert not interrupt()
        signal.raise_signal(signal.SIGINT)
        now[0] += 0.2
        signal.raise_signal(signal.SIGINT)  # torchrun passes on what the terminal sent as well
        assert interrupt()
        now[0] += 2
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert interrupt.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is handler
    assert capfd.readouterr().err == "\nstopping\n"


def test_until_there_is_something_to_lose_the_first_ctrl_c_insists(capfd):
    with Interrupt("stopping", too_early="too early") as interrupt:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert interrupt.exit_code == 143
    assert capfd.readouterr().err == "\ntoo early\n"
    with Interrupt("stopping", too_early="too early") as interrupt:
        interrupt.begin()
        signal.raise_signal(signal.SIGINT)
        assert interrupt()
        assert signal.set_wakeup_fd(-1) == -1
    assert capfd.readouterr().err == "\nstopping\n"


def test_a_request_to_terminate_is_polite_as_well():
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGTERM)
    assert interrupt()
    assert interrupt.exit_code == 143


def test_ctrl_c_twice_stops_at_once(arrays, tmp_path, monkeypatch):
    def insist(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("convdkm.training.loop.Trainer.run", insist)
    folder = tmp_path / "run"
    outcome = call("train", arrays, *OPTIONS, "-o", folder)
    assert outcome.code == 130
    assert f"convdkm resume {folder}" in outcome.out
    assert outcome.last_line == str(folder)


def test_ctrl_c_in_another_command(digits_run, monkeypatch):
    def insist(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("convdkm.insight.summary.summarise", insist)
    outcome = call("show", digits_run)
    assert outcome.code == 130
    assert "Traceback" not in outcome.err


# -- several processes -----------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="gloo on Linux")
def test_two_processes_train_one_machine(arrays, tmp_path):
    folder = tmp_path / "run"
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", _port())
    process = start(
        *("-m", "convdkm", "train", arrays, *QUICK, *TINY, "--epochs", 2, "-o", folder),
        program=torchrun,
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert out.splitlines()[-1] == str(folder)
    assert out.count(str(folder)) == 2, "one process speaks: at the start, and in the last line"
    assert [row["step"] for row in rows(folder / "steps.csv")] == [str(n) for n in range(1, 9)]
    assert metrics(folder)["steps"] == 8
    evaluated = json.loads(succeed("evaluate", folder, "--json").out)
    assert evaluated["test_log_likelihood"] == pytest.approx(
        metrics(folder)["test_log_likelihood"], rel=1e-5
    )


def _port() -> str:
    return str(20000 + os.getpid() % 20000)

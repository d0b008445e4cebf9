"""``convdkm sweep`` and ``convdkm tables``: a tiny sweep from plan to table, and wrong input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sweep_folders import finish, planned
from sweep_tasks import Here

from convdkm.config import RunConfig
from convdkm.lab.studies.sweeps.planning import SweepFolder

TINY = ["--dataset", "digits", "--preset", "quick", "--train-size", "60", "--inducing", "8,8"]


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("CONVDKM_DATA", raising=False)


@pytest.fixture
def here(monkeypatch):
    """Runs are made in this process."""
    monkeypatch.setattr("convdkm.lab.studies.launchers.make_launcher", lambda *_, **__: Here())


def test_a_sweep_from_plan_to_table(call, tmp_path, here):
    out = tmp_path / "out"
    command = ["sweep", "likelihood", *TINY, "--seeds", 1, "--epochs", 1, "-o", out]
    code, text, err = call(*command)
    assert (code, err) == (0, "")
    assert "Table likelihood: 2 settings × 1 data set × 1 seed, 2 runs" in text
    assert "Not at the scale of the paper: preset quick in place of paper" in text
    assert "with 1 at a time" in text
    assert "[2/2] digits, likelihood Categorical, seed 0: " in text
    assert text.splitlines()[-1] == str(out)
    before = (out / "digits/selection/base/seed-0/metrics.json").stat().st_mtime_ns

    code, text, err = call(*command)
    assert (code, err) == (0, "")
    assert "2 finished before" in text
    assert (out / "digits/selection/base/seed-0/metrics.json").stat().st_mtime_ns == before

    code, text, err = call("tables", out, "--no-figures")
    assert code == 0
    assert "| Categorical |" in text
    assert "60 training images in place of all" in text
    endings = {Path(line).name for line in err.splitlines()}
    assert endings == {"likelihood.md", "likelihood.tex", "likelihood.csv"}
    assert "Not finished" not in text


def test_a_failed_run_does_not_stop_the_rest(call, tmp_path, here):
    out = tmp_path / "out"
    small = ["--dataset", "digits", "--preset", "quick", "--train-size", 20, "--epochs", 1]
    rows = ["--rows", "16/32/64,512/1024/2048"]
    command = ["sweep", "inducing", *small, *rows, "--seeds", 1, "--no-trial"]
    broken = SweepFolder(out).path / "digits/benchmark/inducing-512-1024-2048"
    broken.mkdir(parents=True)
    (out / "sweep.json").write_text(
        json.dumps({"scale": {"preset": "quick", "epochs": 1, "train_size": 20}, "tables": {}})
    )
    (broken / "seed-0").write_text("a file where a folder should be")
    code, text, err = call(*command, "-o", out)
    assert code == 1
    assert "failed: digits, inducing points 512 / 1024 / 2048, seed 0: " in err
    assert "1 of 2 runs finished, 1 failed; their errors are kept" in text
    failure = json.loads((broken / "seed-0.failed.json").read_text())
    assert failure["attempts"] == 1
    assert failure["error"] in err.replace("\n", " ")
    _, text, _ = call("tables", out, "--no-figures")
    assert "– (0 of 1, 1 failed)" in text


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    out = tmp_path / "out"
    words = ["sweep", "likelihood", *TINY, "--rows", "categorical", "--seeds", "1", "--no-trial"]
    command = [sys.executable, "-m", "convdkm", *words, "--epochs", "2000", "-o", str(out)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    steps = out / "digits/selection/base/seed-0/steps.csv"
    end = time.monotonic() + 120
    while not steps.is_file() or len(steps.read_text().splitlines()) < 3:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    text, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopping; runs under way save their state" in err
    assert "Traceback" not in err
    assert "Stopped with 0 of 1 runs finished. Go on with\n  convdkm sweep likelihood" in text
    assert (steps.parent / "checkpoints" / "last.safetensors").is_file()


def test_a_dry_run_changes_nothing(call, tmp_path):
    out = tmp_path / "out"
    code, text, _ = call("sweep", "nu", *TINY, "--dry-run", "--no-trial", "-o", out)
    assert code == 0
    assert "11 settings × 1 data set × 4 seeds, 44 runs" in text
    assert not out.exists()
    _, text, _ = call("sweep", "selection", *TINY, "--dry-run", "--no-trial", "-o", out)
    assert "96 runs (16 shared between categories)" in text


def test_wrong_input_to_sweep(fail, tmp_path):
    out = ["-o", tmp_path / "out"]
    assert "no table 'liklihood'. Did you mean 'likelihood'?" in fail("sweep", "liklihood", *out)
    assert "Did you mean 'gaussian'?" in fail("sweep", "likelihood", "--rows", "gausian", *out)
    assert "did you mean 'digits'?" in fail("sweep", "nu", "--dataset", "digit", *out)
    assert "Did you mean 'quick'?" in fail("sweep", "nu", "--preset", "qick", *out)
    assert "epochs" in fail("sweep", "nu", "--epochs", "0", *out)
    assert "--seeds must be at least 1" in fail("sweep", "nu", "--seeds", "0", *out)
    assert "Did you mean 'slurm'?" in fail("sweep", "nu", *TINY, "--launcher", "slrum", *out)
    inducing = fail("sweep", "inducing", "--dataset", "digits", "--inducing", "8,8,8", *out)
    assert "choose rows with --rows" in inducing
    missing = fail("sweep", "nu", "--data-dir", tmp_path, *out)
    assert "leave it out: --dataset cifar10,cifar100" in missing
    assert not (tmp_path / "out").exists()


def test_any_option_of_a_run_can_be_set(call, fail, tmp_path, here):
    out = tmp_path / "out"
    sweep = ["sweep", "likelihood", *TINY, "--rows", "categorical", "--epochs", 2, "--seeds", 1]
    changes = ["--set", "gram-scale=1", "--set", "evaluate_every=0", "--set", "flip=yes"]
    code, text, _ = call(*sweep, *changes, "--no-trial", "-o", out)
    assert code == 0
    assert "gram_scale 1.0; flip True" in text
    assert "evaluate_every" not in text
    (run,) = out.glob("digits/*/*/seed-0/config.yaml")
    config = RunConfig.from_file(run)
    assert (config.model.gram_scale, config.training.flip) == (1, True)
    assert config.training.evaluate_every == 0
    again = ["--set", "flip=on", "--set", "gram_scale=1.0", "--set", "evaluate_every=1"]
    code, text, _ = call(*sweep, *again, "--no-trial", "-o", out)
    assert code == 0
    assert "1 finished before" in text

    def refused(*given):
        return fail(*sweep, *given, "--no-trial", "-o", tmp_path / "other")

    assert "Did you mean 'gram_scale'?" in refused("--set", "gram_scal=1")
    assert "--set needs NAME=VALUE, such as" in refused("--set", "gram_scale")
    assert "an option of its own here, --seeds" in refused("--set", "seed=1")
    assert "--set flip is given twice" in refused("--set", "flip=1", "--set", "flip=0")
    assert "gram_scale must be a number" in refused("--set", "gram_scale=big")
    assert "--rows gaussian, in place of --set likelihood" in refused(
        "--set", "likelihood=gaussian"
    )


def test_another_scale_needs_another_folder(fail, tmp_path):
    planned(tmp_path, "likelihood", ("digits",))
    small = ["--dataset", "digits", "--preset", "quick", "--no-trial", "-o", tmp_path]
    message = fail("sweep", "likelihood", *small, "--epochs", 3)
    assert "at another scale (epochs 2 and not 3); choose another --output" in message


def test_a_run_of_other_settings_is_not_overwritten(fail, tmp_path):
    place, runs = planned(tmp_path, "likelihood", ("digits",), seeds=1)
    run = runs["categorical", "digits"][0]
    finish(place, run, 0.9)
    (place.of(run) / "config.yaml").write_text(run.config.updated({"flip": True}).to_yaml())
    small = ["--dataset", "digits", "--preset", "quick", "--epochs", 2, "--no-trial"]
    message = fail("sweep", "likelihood", *small, "-o", tmp_path)
    assert "holds a run with other settings (flip True and not False)" in message


def test_wrong_input_to_tables(fail, tmp_path):
    assert "does not exist. `convdkm sweep TABLE" in fail("tables", tmp_path / "nowhere")
    planned(tmp_path, "likelihood")
    assert "Did you mean 'markdown'?" in fail("tables", tmp_path, "--format", "markdwn")
    assert "--curves are drawn in figures" in fail(
        "tables", tmp_path, "--no-figures", "--curves", "curves.csv"
    )


def test_tables_without_matplotlib(call, tmp_path, monkeypatch):
    planned(tmp_path, "likelihood")
    monkeypatch.setattr("convdkm.cli.tables.find_spec", lambda name: None)
    code, text, err = call("tables", tmp_path, "-f", "csv")
    assert code == 0
    assert text.startswith("table,category,row")
    assert "pip install convdkm[figures]" in err

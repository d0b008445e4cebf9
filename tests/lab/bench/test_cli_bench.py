"""``convdkm bench``, on sizes that take no time."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "cli"))

from cli_helpers import fail, succeed

from convdkm.cli.bench import chosen_parts
from convdkm.lab.bench import compare, contestants, scaling

RATIOS = {
    "train_step_textbook_over_ours",
    "train_step_ours_over_cnn",
    "predict_ours_over_cnn",
    "train_memory_ours_over_cnn",
    "train_memory_checkpointed_over_cnn",
    "train_flops_textbook_over_ours",
    "train_flops_ours_over_cnn",
    "predict_flops_ours_over_cnn",
    "objective_float32_vs_float64",
}
TINY = ["--widths", "4,4,4", "--batch", 4, "--side", 8, "--repeats", 1, "--steps", 2]
TINY += ["--no-compile"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A terminal of usual width, machines that start from few images, and no time to settle."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(contestants, "INITIAL_IMAGES", 24)
    monkeypatch.setattr(compare, "SETTLING", 0.0)


def test_quick_writes_the_ratios_and_what_they_come_from(tmp_path):
    path, tables = tmp_path / "speed.json", tmp_path / "speed.md"
    options = ["--no-keep-memory", "--json", path, "--markdown", tables]
    out = succeed("bench", "--quick", *TINY, *options).out
    results = json.loads(path.read_text())
    assert set(results) >= RATIOS
    assert all(results[name] > 0 for name in RATIOS - {"objective_float32_vs_float64"})
    assert 0 <= results["objective_float32_vs_float64"] < 1e-5
    assert {"date", "machine", "versions", "settings"} <= set(results)
    (row,) = results["rows"]
    assert row["widths"] == [4, 4, 4]
    assert {"ours", "textbook", "CNN", "ours, checkpointed"} == set(row["train"])
    assert len(row["train"]["ours"]["step_seconds"]) == 1
    assert row["train"]["textbook"]["memory"] > row["train"]["ours"]["memory"] > 0
    flops = {name: each["flops"] for name, each in row["train"].items()}
    assert flops["ours, checkpointed"] > flops["ours"] > flops["CNN"] > 0
    for each, seconds in (
        *((each, each["step"]) for each in row["train"].values()),
        *((each, each["seconds"]) for each in row["predict"].values()),
    ):
        assert each["flops_per_second"] == pytest.approx(each["flops"] / seconds)
    assert "scaling" not in results
    assert "profile" not in results
    for text in (out, tables.read_text()):
        assert "Training, 4/4/4, batches of 4" in text
        assert "Ratios" in text
        assert "GFLOP/s" in text
        assert "float32 data path" in text
        assert results["versions"]["torch"] in text


def test_a_part_alone(tmp_path, monkeypatch):
    every = scaling.axes
    monkeypatch.setattr(scaling, "axes", lambda base: [every(base)[2]])
    path = tmp_path / "speed.json"
    options = ["--no-keep-memory", "--threads", 1, "--json", path]
    out = succeed("bench", "--profile", "--scaling", *TINY, *options).out
    results = json.loads(path.read_text())
    assert not RATIOS & set(results)
    assert results["machine"]["threads"] == 1
    stages = {each["stage"] for each in results["profile"]["stages"]}
    assert {"inducing chain", "convolutions", "Gram layers", "kernels", "optimiser"} <= stages
    assert [len(each["seconds"]) for each in results["scaling"]] == [3]
    assert results["scaling"][0]["memory_exponent"] > 0
    assert "Where a step goes" in out
    assert "█" in out
    assert "Growth of a step" in out


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ({}, ("compare", "scaling", "profile")),
        ({"quick": True}, ("compare",)),
        ({"quick": True, "profile": True}, ("compare", "profile")),
        ({"scaling": True}, ("scaling",)),
        ({"scaling": True, "profile": True}, ("scaling", "profile")),
    ],
)
def test_which_parts_run(asked, parts):
    assert chosen_parts(**{"quick": False, "scaling": False, "profile": False, **asked}) == parts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--widths", "16,x,64"], "--widths takes a number for each of three stages"),
        (["--widths", "16,32"], "widths are 3 positive numbers"),
        (["--batch", 0], "batch must be a positive integer, got 0"),
        (["--repeats", 0], "repeats must be a positive integer, got 0"),
        (["--threads", 0], "--threads must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_run(options, message):
    assert message in fail("bench", "--quick", *options)

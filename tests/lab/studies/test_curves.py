"""Curves of runs: their labels, their costs, and what is drawn of them."""

import json
import runpy
from pathlib import Path

import pytest

from convdkm.config import RunConfig
from convdkm.errors import InvalidInputError
from convdkm.lab.studies.comparison.folder import (
    ComparisonFolder,
    PlannedTrial,
    Record,
    Scale,
    TrialResult,
)
from convdkm.lab.studies.curves import labelled

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "cost_curves.py"


def run_folder(path, dataset="cifar10", **more):
    path.mkdir()
    (path / "config.yaml").write_text(RunConfig.of({"dataset": dataset}).to_yaml())
    metrics = {"steps": 40, "seconds": 80.0, "cpu_seconds": 7200.0, "flops": 4e15} | more
    (path / "metrics.json").write_text(json.dumps(metrics))
    rows = ["1,20,20.0,0.5,-1.5", "2,40,80.0,0.75,-1.0"]
    head = "epoch,step,seconds,test_accuracy,test_log_likelihood"
    (path / "epochs.csv").write_text("\n".join([head, *rows]) + "\n")
    return path


def test_runs_with_the_same_label_are_seeds():
    found = labelled(["a=x", "b c=y", "a=z", "d=e=f"])
    assert found == {"a": [Path("x"), Path("z")], "b c": [Path("y")], "d=e": [Path("f")]}
    with pytest.raises(InvalidInputError, match="'x' is not LABEL=RUN"):
        labelled(["x"])


def test_an_epoch_costs_its_share_of_the_run(tmp_path):
    rows = runpy.run_path(str(SCRIPT))["of_run"](run_folder(tmp_path / "run"))
    assert [row["pflop"] for row in rows] == [2.0, 4.0]
    assert [row["cpu_hours"] for row in rows] == [0.5, 2.0]


def test_trials_of_a_comparison_are_points(tmp_path):
    script, trial = runpy.run_path(str(SCRIPT)), PlannedTrial("cnn", 100, 0)
    folder = ComparisonFolder(tmp_path)
    scale = Scale(dataset="cifar10", preset="quick", whitening="none")
    record = Record(scale=scale, plan={"cnn": {100: 2}})
    (tmp_path / "comparison.json").write_text(record.model_dump_json())
    assert script["dataset_of"](tmp_path) == "cifar10"
    with pytest.raises(InvalidInputError, match="holds no finished trials"):
        script["curves"](tmp_path)
    metrics = {"accuracy": 0.75, "log_likelihood": -1.0}
    costs = {"fit_flops": 4e15, "fit_cpu_seconds": 7200.0}
    folder.write(trial, TrialResult(state="finished", metrics=metrics, **costs))
    point = {"test_accuracy": 0.75, "test_log_likelihood": -1.0, "pflop": 4.0, "cpu_hours": 2.0}
    assert script["curves"](tmp_path) == [[point]]


def drawn(monkeypatch, capsys, tmp_path, *runs):
    """What the script prints, and the places of the curves in each panel of its figure."""
    figures = pytest.importorskip("matplotlib.figure")
    seen = []
    save = figures.Figure.savefig
    monkeypatch.setattr(
        figures.Figure, "savefig", lambda *a, **k: (seen.append(a[0]), save(*a, **k))
    )
    arguments = [str(SCRIPT), *(f"ours={run}" for run in runs), "-o", str(tmp_path / "a.png")]
    monkeypatch.setattr("sys.argv", arguments)
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = [{each.get_label(): each.get_xdata() for each in panel.lines} for panel in seen[0].axes]
    return capsys.readouterr().out, lines


def test_what_is_published_stands_beside_runs_and_only_what_is_known_is_drawn(
    monkeypatch, capsys, tmp_path
):
    runs = run_folder(tmp_path / "a"), run_folder(tmp_path / "b", flops=8e15)
    out, panels = drawn(monkeypatch, capsys, tmp_path, *runs)
    (ours,) = [line for line in out.splitlines() if line.startswith("| ours")]
    assert [cell.strip() for cell in ours.split("|")[2:-1]] == [
        *("2 runs", "75.0", "-1.00", "6", "2 (CPU)")
    ]
    for name, hours in (("512/1024/2048", "77 (A100)"), ("CKN-14", "4.3 (a consumer GPU of 2017)")):
        (row,) = [line for line in out.splitlines() if name in line]
        assert "–" in row
        assert hours in row
    accuracy, accuracy_by_hours, likelihood, likelihood_by_hours = panels
    assert set(accuracy) == {"ours", "small fast CNN"}
    assert list(accuracy["ours"]) == [3.0, 6.0]
    assert list(accuracy_by_hours["ours"]) == [0.5, 2.0]
    assert set(accuracy_by_hours) == set(likelihood) == set(likelihood_by_hours) == {"ours"}


def test_runs_on_other_data_have_nothing_published_beside_them(monkeypatch, capsys, tmp_path):
    out, panels = drawn(monkeypatch, capsys, tmp_path, run_folder(tmp_path / "a", "mnist"))
    assert "CKN-14" not in out
    assert set(panels[0]) == {"ours"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: (run / "metrics.json").unlink(), "finish it by convdkm resume"),
        (lambda run: (run / "metrics.json").write_text("{}"), "has no flops: train the run again"),
    ],
)
def test_runs_without_costs_are_refused(monkeypatch, capsys, tmp_path, change, message):
    run = run_folder(tmp_path / "run")
    change(run)
    monkeypatch.setattr("sys.argv", [str(SCRIPT), f"ours={run}"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert message in capsys.readouterr().err

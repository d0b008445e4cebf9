"""The Ray launcher, on a real cluster of this machine."""

import os
import signal
from pathlib import Path

import pytest
from sweep_tasks import Fake, KilledOnce, KilledTrial, check_comparison
from test_launchers import check_mixed

from convdkm.lab.studies.comparison import comparison
from convdkm.lab.studies.launchers import Resources
from convdkm.lab.studies.study import Tell, conduct
from convdkm.lab.studies.sweeps import sweep
from convdkm.lab.studies.sweeps.planning import Record, Scale, Selection, SweepFolder
from convdkm.lab.studies.sweeps.results import Results

pytest.importorskip("ray", reason="the Ray launcher needs ray")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two workers, which the launchers below join; it ignores interrupts."""
    import ray

    before = os.environ.get("PYTHONPATH")
    place = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", place)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            ray.init(
                num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error"
            )
        finally:
            signal.signal(signal.SIGINT, usual)
        yield
        ray.shutdown()


def launcher(**resources):
    from convdkm.lab.studies.launchers.ray import RayLauncher

    return RayLauncher(resources=Resources(cpus=1, **resources))


def test_tasks_of_every_kind(cluster, tmp_path):
    outcomes = check_mixed(launcher(retries=1), tmp_path, without=("crash",))
    assert "worker died" in outcomes["die"].error


def test_a_request_to_stop(cluster, tmp_path):
    tasks = [Fake("wait", "wait", str(tmp_path))]
    outcomes = list(launcher().run(tasks, stop=(tmp_path / "wait.waits").exists))
    assert [each.status for each in outcomes] == ["stopped"]


def test_a_worker_killed_in_the_middle_of_a_run_loses_nothing(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "RunTask", KilledOnce)
    folder = SweepFolder(tmp_path)
    chosen = Selection(
        datasets=("digits",), rows={"likelihood": ("gaussian", "categorical")}, seeds=1
    )
    scale = Scale(preset="quick", epochs=4, train_size=60, inducing=(8, 8))
    record = Record(scale=scale, tables={"likelihood": chosen})
    study = sweep.Sweep(folder, record, {"device": "cpu"}, timed=False)
    told = []
    progress = conduct(study, launcher(), tell=Tell(told.append, told.append))
    runs = folder.read().planned()
    assert (progress.done, progress.failed, progress.total, progress.left) == (2, 0, 2, {})
    assert {folder.status(run).state for run in runs} == {"finished"}
    assert not [line for line in told if "failed" in line]
    for run in runs:
        killed = folder.of(run).with_name("seed-0.killed").exists()
        assert killed == (run.config.model.likelihood == "gaussian")
        epochs = (folder.of(run) / "epochs.csv").read_text().splitlines()
        assert [line.split(",")[0] for line in epochs[1:]] == ["1", "2", "3", "4"]
    (table,) = Results(tmp_path).tables()
    assert all(cell.complete for line in table.blocks[0].lines for cell in line.cells)
    assert not [note for note in table.notes if "ailed" in note or "Not finished" in note]


def test_a_comparison_of_methods(cluster, tmp_path, monkeypatch, call, bright):
    monkeypatch.setattr(comparison, "TrialTask", KilledTrial)
    check_comparison(call, bright, tmp_path / "out", "ray")

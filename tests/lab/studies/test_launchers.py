"""One interface, three engines: outcomes, lost workers, requests to stop."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from sweep_tasks import Fake, KilledTrial, check_comparison

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.launchers import Resources, make_launcher
from convdkm.lab.studies.launchers.local import LocalLauncher
from convdkm.lab.studies.launchers.slurm import SlurmLauncher

HERE = str(Path(__file__).parent)
STATUS = {
    "work": "done",
    "fail": "failed",
    "crash": "failed",
    "die_once": "done",
    "die": "lost",
}


@pytest.fixture
def importable(monkeypatch):
    """Other processes find the tasks of these tests."""
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [HERE, before])))


def check_mixed(launcher, folder, without=()):
    """Every kind of task in one go: each has its outcome, whatever became of the others."""
    status = {kind: end for kind, end in STATUS.items() if kind not in without}
    tasks = [Fake(kind, kind, str(folder), str(folder / f"{kind}.log")) for kind in status]
    outcomes = {outcome.name: outcome for outcome in launcher.run(tasks)}
    assert {name: each.status for name, each in outcomes.items()} == status
    assert outcomes["work"].value["name"] == "work"
    assert outcomes["fail"].error == "there is something to mend"
    assert outcomes["die_once"].value["name"] == "die_once"
    assert (folder / "work.log").read_text() == "work at work\n"
    assert "Traceback" in (folder / "fail.log").read_text()
    return outcomes


def test_a_pool_of_processes(tmp_path):
    outcomes = check_mixed(LocalLauncher(2, Resources(cpus=1, retries=1)), tmp_path)
    assert outcomes["crash"].error == "ZeroDivisionError: division by zero"
    assert outcomes["die"].attempts == 2
    assert outcomes["die_once"].attempts == 2
    assert outcomes["die"].error == "its process was ended by SIGKILL; was there too little memory?"
    assert outcomes["work"].value["threads"] == "1"


def test_a_pool_that_is_asked_to_stop(tmp_path):
    launcher = LocalLauncher(1)
    tasks = [Fake(name, "wait", str(tmp_path)) for name in ("first", "second")]
    outcomes = list(launcher.run(tasks, stop=(tmp_path / "first.waits").exists))
    assert [(each.name, each.status) for each in outcomes] == [("first", "stopped")]
    assert not (tmp_path / "second.waits").exists(), "it was never begun"


def test_tasks_are_asked_for_when_there_is_room(tmp_path):
    asked = []

    def tasks():
        for name in ("first", "second"):
            asked.append(name)
            yield Fake(name, "work", str(tmp_path))

    outcomes = LocalLauncher(1).run(tasks())
    assert next(outcomes).name == "first"
    assert asked == ["first"]
    assert [each.name for each in outcomes] == ["second"]


def test_a_pool_that_is_left_leaves_no_processes(tmp_path):
    outcomes = LocalLauncher(2).run(
        [Fake("work", "work", str(tmp_path)), Fake("wait", "wait", str(tmp_path))]
    )
    assert next(outcomes).name == "work"
    outcomes.close()


ORPHAN = """
import sys
from sweep_tasks import Fake, KilledTrial, check_comparison
from convdkm.lab.studies.launchers.local import LocalLauncher
from convdkm.lab.studies.launchers.slurm import SlurmLauncher
if __name__ == "__main__":
    list(LocalLauncher(1).run([Fake("orphan", "wait", sys.argv[1])]))
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_processes_end_with_the_one_that_launched_them(tmp_path, importable):
    (tmp_path / "main.py").write_text(ORPHAN)
    main = subprocess.Popen([sys.executable, tmp_path / "main.py", tmp_path])
    waits = tmp_path / "orphan.waits"
    _until(waits.exists)
    children = _children(main.pid)
    assert children
    main.send_signal(signal.SIGKILL)
    main.wait()
    _until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


def _children(parent):
    return [
        int(stat.parent.name)
        for stat in Path("/proc").glob("[0-9]*/stat")
        if int(stat.read_text().rpartition(")")[2].split()[1]) == parent
    ]


def _until(done, seconds=60):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_how_many_at_a_time():
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert LocalLauncher().at_once == cores
    assert LocalLauncher(resources=Resources(cpus=10_000)).at_once == 1
    assert LocalLauncher(3).at_once == 3
    assert LocalLauncher(1).threads == cores


def test_devices_are_shared_out(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert LocalLauncher(resources=Resources(gpus=1)).slots == ["2", "5"]
    assert LocalLauncher(resources=Resources(gpus=0.5)).slots == ["2", "5", "2", "5"]
    assert LocalLauncher(1, Resources(gpus=1)).slots == ["2"]
    assert LocalLauncher().slots == ["2", "5"]
    assert LocalLauncher(3).slots == ["2", "5", "2"]
    assert LocalLauncher(4, device="cpu").slots == [None] * 4
    assert LocalLauncher(4, Resources(gpus=0)).slots == [None] * 4
    assert LocalLauncher(device="cuda:1").slots == [None]
    with pytest.raises(InvalidInputError, match="one device at most, got 2"):
        LocalLauncher(resources=Resources(gpus=2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(InvalidInputError, match="this machine has none"):
        LocalLauncher(resources=Resources(gpus=1))


def test_bad_requests(tmp_path, monkeypatch):
    with pytest.raises(InvalidInputError, match=r"no launcher 'slrum'. Did you mean 'slurm'\?"):
        make_launcher("slrum", tmp_path, Resources())
    with pytest.raises(InvalidInputError, match="--jobs must be at least 1"):
        LocalLauncher(0)
    for bad in ({"cpus": 0}, {"gpus": -1}, {"retries": -1}):
        with pytest.raises(InvalidInputError, match=f"--{next(iter(bad))}"):
            Resources(**bad)
    with pytest.raises(InvalidInputError, match="--hours must be more than 0"):
        make_launcher("slurm", tmp_path, Resources(), hours=0)
    for package, extra in (("ray", "ray"), ("submitit", "slurm")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(InvalidInputError, match=rf"pip install convdkm\[{extra}\]"):
            make_launcher(extra, tmp_path, Resources())


class TestSlurm:
    """Through submitit, whose local executor stands for the cluster."""

    @pytest.fixture(autouse=True)
    def _installed(self, importable, monkeypatch):
        pytest.importorskip("submitit", reason="the SLURM launcher needs submitit")
        # How long it waits for the result of a job that left none, on a file system that is slow.
        monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 0.5)

    def launcher(self, folder, **options):
        return SlurmLauncher(folder / "jobs", cluster="local", **options)

    def test_jobs(self, tmp_path):
        launcher = self.launcher(tmp_path, resources=Resources(cpus=1, retries=1))
        outcomes = check_mixed(launcher, tmp_path, without=("crash", "die"))
        assert outcomes["die_once"].attempts == 2
        assert outcomes["work"].value["threads"] == "1"

    def test_a_comparison_of_methods(self, tmp_path, monkeypatch, call, bright):
        monkeypatch.setattr("convdkm.lab.studies.comparison.comparison.TrialTask", KilledTrial)
        local = partial(SlurmLauncher, cluster="local")
        monkeypatch.setattr("convdkm.lab.studies.launchers.slurm.SlurmLauncher", local)
        check_comparison(call, bright, tmp_path / "out", "slurm")
        assert any((tmp_path / "out" / "jobs").iterdir())

    def test_a_job_that_is_lost_each_time(self, tmp_path):
        launcher = self.launcher(tmp_path, resources=Resources(retries=0))
        (outcome,) = launcher.run([Fake("die", "die", str(tmp_path))])
        assert (outcome.status, outcome.attempts) == ("lost", 1)
        assert "has not produced any output" in outcome.error

    @pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_jobs_are_cancelled_when_asked_to_stop(self, tmp_path):
        tasks = [Fake(name, "wait", str(tmp_path)) for name in ("first", "second")]
        launcher = self.launcher(tmp_path, jobs=1)
        outcomes = list(launcher.run(tasks, stop=(tmp_path / "first.waits").exists))
        assert [(each.name, each.status) for each in outcomes] == [("first", "stopped")]

    def test_a_job_at_its_limit_is_queued_again(self, tmp_path):
        from convdkm.lab.studies.launchers.slurm import Requeued

        task = Requeued(Fake("work", "work", str(tmp_path)), 1)
        again = task.checkpoint()
        assert again.function is task

    def test_without_slurm_there_is_an_error(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", "")
        with pytest.raises(InvalidInputError, match="run this on a machine that has sbatch"):
            make_launcher("slurm", tmp_path, Resources())

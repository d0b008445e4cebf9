"""How long a sweep will take, from a trial and from finished runs."""

import pytest
from sweep_folders import finish, planned
from sweep_tasks import Here

from convdkm.lab.studies.study import Foreseen, Progress
from convdkm.lab.studies.sweeps.estimating import estimate, foreseen
from convdkm.lab.studies.sweeps.planning import Scale
from convdkm.lab.studies.sweeps.tasks import Pace, PaceTask

TINY = Scale(preset="quick", epochs=3, train_size=60, inducing=(8, 8))


class Forbidden(Here):
    """For where there is nothing to measure."""

    def run(self, tasks, stop=lambda: False):
        raise AssertionError("there is nothing to try")


def test_a_trial_measures_the_first_steps(tmp_path):
    _, runs = planned(tmp_path, "likelihood", ("digits",), 1, TINY)
    config = runs["gaussian", "digits"][0].config
    trial = PaceTask("trial", config.model_dump(mode="json"))()
    assert (trial.steps_per_epoch, trial.num_data) == (1, 60)
    assert min(trial.begin, trial.step, trial.image) > 0


def test_a_run_takes_its_steps_and_its_evaluations(tmp_path):
    _, runs = planned(tmp_path, "likelihood", ("digits",), 1, TINY)
    run = runs["gaussian", "digits"][0]
    config = run.config.updated({"evaluate_every": 1, "calibrate": 0})
    trial = Pace(begin=2.0, step=0.5, image=0.001, steps_per_epoch=10, num_data=600)
    seconds = foreseen(type(run)(run.title, run.dataset, 0, run.place, config), trial)
    assert seconds == pytest.approx(2 + 30 * 0.5 + (3 * 360 + 360 + 600) * 0.001)


def test_one_trial_stands_for_all_runs_of_its_size(tmp_path):
    place, runs = planned(tmp_path, "likelihood", ("digits",), 2, TINY)
    every = [run for cell in runs.values() for run in cell]
    tried = []

    class Counting(Here):
        def run(self, tasks, stop=lambda: False):
            tried.extend(tasks)
            return super().run(tasks, stop)

    found = estimate(Progress((), tuple(every), 0), place, Counting(), where={}, stop=lambda: False)
    assert len(tried) == 1
    assert set(found.seconds) == {run.place for run in every}
    assert found.remaining(every, 2) == pytest.approx(found.total / 2)
    assert found.remaining(every, None) is None


def test_finished_runs_make_a_trial_needless(tmp_path):
    place, runs = planned(tmp_path, "likelihood", ("digits",), 2, TINY)
    done, *left = [run for cell in runs.values() for run in cell]
    finish(place, done, 0.9, seconds=7.0)
    found = estimate(
        Progress((done,), tuple(left), 0), place, Forbidden(), where={}, stop=lambda: False
    )
    assert set(found.seconds.values()) == {7.0}


def test_a_trial_that_fails_is_told_and_the_time_is_not_known(tmp_path):
    place, runs = planned(tmp_path, "likelihood", ("mnist",), 1, TINY)
    every = [run for cell in runs.values() for run in cell]
    where = {"data_dir": str(tmp_path / "nowhere")}
    found = estimate(Progress((), tuple(every), 0), place, Here(), where=where, stop=lambda: False)
    assert "MNIST not found" in found.problem
    assert found.remaining(every, 1) is None


def test_no_run_is_shorter_than_itself():
    class Run:
        def __init__(self, place):
            self.place = place

    assert Foreseen({"a": 10.0, "b": 1.0}).remaining([Run("a"), Run("b")], 4) == 10.0

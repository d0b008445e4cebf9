"""How long a sweep will take, from a trial and from finished runs."""

import pytest
from sweep_folders import finish, planned
from sweep_tasks import Here

from convdkm.lab.studies.study import Progress
from convdkm.lab.studies.sweeps.planning import Scale
from convdkm.lab.studies.sweeps.timing import Pace, PaceTask, estimate, foreseen

TINY = Scale(preset="quick", epochs=3, train_size=60, inducing=(8, 8))


class Forbidden(Here):
    """For where there is nothing to measure."""

    def run(self, tasks, stop=lambda: False):
        raise AssertionError("there is nothing to try")


def estimated(progress, place, launcher, **where):
    """Estimate what is left; the warnings."""
    told = []
    estimate(progress, place, launcher, where=where, stop=lambda: False, warn=told.append)
    return told


def test_a_trial_measures_the_first_steps(tmp_path):
    _, runs = planned(tmp_path, "likelihood", ("digits",), 1, TINY)
    config = runs["gaussian", "digits"][0].config
    trial = PaceTask("trial", config)()
    assert (trial.steps_per_epoch, trial.num_data) == (1, 60)
    assert min(trial.begin, trial.step, trial.image) > 0


def test_a_run_takes_its_steps_and_its_evaluations(tmp_path):
    _, runs = planned(tmp_path, "likelihood", ("digits",), 1, TINY)
    run = runs["gaussian", "digits"][0]
    config = run.config.updated({"evaluate_every": 1, "calibrate": 0})
    trial = Pace(begin=2.0, step=0.5, image=0.001, steps_per_epoch=10, num_data=600)
    seconds = foreseen(type(run)(run.title, run.dataset, run.place, config), trial)
    assert seconds == pytest.approx(2 + 30 * 0.5 + (3 * 360 + 360 + 600) * 0.001)


def test_one_trial_stands_for_all_runs_of_its_size(tmp_path):
    place, runs = planned(tmp_path, "likelihood", ("digits",), 2, TINY)
    every = [run for cell in runs.values() for run in cell]
    tried = []

    class Counting(Here):
        def run(self, tasks, stop=lambda: False):
            tried.extend(tasks)
            return super().run(tasks, stop)

    progress = Progress((), every)
    assert estimated(progress, place, Counting()) == []
    assert len(tried) == 1
    assert set(progress.seconds) == {run.place for run in every}
    assert progress.remaining(2) == pytest.approx(sum(progress.seconds.values()) / 2)
    assert progress.remaining(None) is None


def test_finished_runs_make_a_trial_needless(tmp_path):
    place, runs = planned(tmp_path, "likelihood", ("digits",), 2, TINY)
    done, *left = [run for cell in runs.values() for run in cell]
    finish(place, done, 0.9, seconds=7.0)
    progress = Progress((done,), left)
    assert estimated(progress, place, Forbidden()) == []
    assert set(progress.seconds.values()) == {7.0}


def test_a_trial_that_fails_is_told_and_the_time_is_not_known(tmp_path):
    place, runs = planned(tmp_path, "likelihood", ("mnist",), 1, TINY)
    every = [run for cell in runs.values() for run in cell]
    progress = Progress((), every)
    (warning,) = estimated(progress, place, Here(), data_dir=str(tmp_path / "nowhere"))
    assert warning.startswith("a trial failed: ")
    assert "MNIST not found" in warning
    assert progress.remaining(1) is None


def test_no_run_is_shorter_than_itself():
    class Run:
        def __init__(self, place):
            self.place = place

    progress = Progress((), [Run("a"), Run("b")])
    progress.seconds = {"a": 10.0, "b": 1.0}
    assert progress.remaining(4) == 10.0

"""Trials: the same images for all, figures as they are, time and memory of the method alone."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from comparison_helpers import DIGITS

from convdkm.data import from_arrays
from convdkm.errors import InvalidInputError, NumericalError
from convdkm.lab.baselines import CNN, Baseline
from convdkm.lab.baselines.setting import Setting
from convdkm.lab.studies.comparison.folder import TrialResult
from convdkm.lab.studies.comparison.images import Split, check_sizes, drawn, load_images, whitened
from convdkm.lab.studies.comparison.trial import Notes, TrialTask, check_time, figures


@pytest.fixture(scope="module")
def digits():
    return load_images(DIGITS.model_copy(update={"test_size": 40}), None)


def test_every_seed_has_its_training_images_and_all_have_the_same_test_images(digits):
    first, again, other = drawn(digits, 50, 0), drawn(digits, 50, 0), drawn(digits, 50, 1)
    assert first.train_images.equal(again.train_images)
    assert not first.train_images.equal(other.train_images)
    assert first.test_images.equal(other.test_images)
    assert len(first.test_images) == 40
    assert first.train_labels.bincount().tolist() == [5] * 10
    assert first.test_labels.bincount().tolist() == [4] * 10


def test_whitening_is_fitted_to_the_training_images(digits, tmp_path):
    split = drawn(digits, 50, 0)
    white = whitened(split, "standardise", 0.1)
    deviation, mean = torch.std_mean(split.train_images, correction=0)
    expected = (split.test_images - mean) / deviation
    torch.testing.assert_close(white.test_images, expected, atol=1e-5, rtol=1e-5)
    assert abs(float(white.train_images.mean())) < 1e-5
    assert abs(float(white.test_images.mean())) > 1e-5
    white.save(tmp_path / "images")
    read = Split.read(tmp_path / "images")
    assert read.test_images.equal(white.test_images)
    assert read.train_labels.equal(split.train_labels)


def test_sizes_that_cannot_be_drawn_are_refused(digits):
    total = len(digits.train_images)
    assert check_sizes(digits, [None, 100, 50, 100]) == [50, 100, total]
    with pytest.raises(InvalidInputError, match=f"asks for 5,000 images, and digits has {total:,}"):
        check_sizes(digits, [5000])
    with pytest.raises(InvalidInputError, match="less than one image for each of the 10 classes"):
        check_sizes(digits, [9])


def task(tmp_path, method, minutes=None):
    random = np.random.default_rng(0)
    labels = np.arange(120) % 3
    images = random.integers(0, 90, (120, 4, 4)).astype(np.uint8)
    images[np.arange(120), labels] += 120
    data = from_arrays(images[:100], labels[:100], images[100:], labels[100:])
    drawn(data, 100, 0).save(tmp_path / "images")
    folder = tmp_path / "kernel"
    return TrialTask(
        "a trial",
        method,
        Setting("bright", side=4, folder=folder),
        minutes,
        str(tmp_path / "images"),
        str(tmp_path / "result.json"),
    )


@pytest.mark.parametrize("method", ["nngp-linear", "ckn"])
def test_a_trial_is_measured_and_kept(tmp_path, method, capsys):
    content = task(tmp_path, method)()
    result = TrialResult.model_validate(content)
    kept = TrialResult.model_validate_json((tmp_path / "result.json").read_text())
    assert kept == result
    assert result.state == "finished"
    assert result.metrics["accuracy"] == 1.0
    assert set(result.metrics) == {"accuracy", "log_likelihood", "ece", "brier"}
    assert (result.train_images, result.test_images) == (100, 20)
    assert result.fit_seconds > 0
    assert result.fit_cpu_seconds > 0
    assert result.fit_flops is None  # these count none
    assert result.predict_seconds > 0
    assert 0 <= result.added_memory < result.peak_memory
    assert result.parameters == (300 if method == "nngp-linear" else result.parameters)
    assert not result.cut_short
    assert not result.resumed
    assert not (tmp_path / "kernel").exists()
    assert result.environment["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert result.notes
    assert all(note in capsys.readouterr().out for note in result.notes[:1])


@pytest.mark.parametrize("fails", [False, True])
def test_the_flops_of_a_fit_are_kept_where_they_can_be_counted(tmp_path, fails, monkeypatch):
    def failing(*_):
        raise RuntimeError("no memory is left")

    monkeypatch.setattr(CNN, "flops", failing if fails else CNN.flops)
    result = TrialResult.model_validate(task(tmp_path, "cnn", minutes=1 / 20)())
    assert result.state == "finished"
    assert (result.fit_flops is None) == fails
    assert ("FLOPs were not counted: no memory is left" in result.notes) == fails


def test_predictions_that_take_too_long_are_refused_before_the_fit(tmp_path):
    with pytest.raises(InvalidInputError) as error:
        task(tmp_path, "myrtle5", minutes=1e-9)()
    assert "predicting 20 test images takes about" in str(error.value)
    assert "use --test-size 0 or less" in str(error.value)
    assert not (tmp_path / "kernel").exists()


class Slow(Baseline):
    """Knows that it takes ten minutes to fit, and a second for each image."""

    def fit(self, images, labels):
        return self

    def scores(self, images):
        return torch.eye(2)[: len(images)]

    @property
    def parameters(self):
        return 0

    def expected_seconds(self, images, predicted):
        return 600.0, 1.0 * predicted


def test_what_would_fit_is_said():
    images = torch.zeros(4, 1, 4, 4)
    check_time(Slow(), images, 120, 2)
    with pytest.raises(
        InvalidInputError, match=r"about 4 min, more than the 2 min allowed; .*120 "
    ):
        check_time(Slow(), images, 240, 2)


def test_accuracy_alone_where_there_are_no_probabilities():
    labels = torch.tensor([0, 1, 1, 1])
    assert figures(None, torch.tensor([0, 1, 0, 1]), labels) == {"accuracy": 0.75}


def test_figures_of_probabilities():
    labels = torch.tensor([0, 1])
    found = figures(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), None, labels)
    assert found["accuracy"] == 1.0
    assert found["log_likelihood"] == pytest.approx(np.log(0.5) / 2)
    assert found["brier"] == pytest.approx(0.25)
    certain = figures(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), None, labels)
    assert np.isfinite(certain["log_likelihood"])
    with pytest.raises(NumericalError, match="of 1 of 2 images are not finite"):
        figures(torch.tensor([[0.5, np.nan], [0.0, 1.0]]), None, labels)


PEAK = """
import numpy as np
from convdkm.lab.studies.comparison import measuring
size = 64 * 2**20
first = np.ones(4 * size, dtype=np.uint8)
high = measuring.peak_memory()
assert high >= first.nbytes
del first
measuring.forget_peak()
before = measuring.memory_now()
second = np.ones(size, dtype=np.uint8)
import sys
assert "torch" not in sys.modules
print(high - before, measuring.peak_memory() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone forgets peaks")
def test_the_peak_of_memory_is_that_of_the_time_between():
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    forgotten, added = map(int, done.stdout.split())
    size = 64 * 2**20
    assert forgotten > 3 * size
    assert 0.9 * size < added < 2 * size


def test_of_lines_that_differ_in_numbers_the_last_is_kept(capsys):
    notes = Notes()
    for text in ("epoch 1 of 9: loss 3.0", "ridge 0.1", "epoch 2 of 9: loss 2.0", "done: 5"):
        notes.add(text)
    assert list(notes.kept.values()) == ["ridge 0.1", "epoch 2 of 9: loss 2.0", "done: 5"]
    assert capsys.readouterr().out.count("\n") == 4

"""The folder of a comparison: one scale, more trials when asked, nothing of others destroyed."""

import json

import pytest
from comparison_helpers import CIFAR, DIGITS, finished, made_up

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.comparison.folder import (
    ComparisonFolder,
    PlannedTrial,
    Record,
    TrialResult,
    product,
)


def refused(action, *arguments):
    with pytest.raises(InvalidInputError) as error:
        action(*arguments)
    return str(error.value)


def test_trials_are_made_by_size_then_seed():
    record = Record(scale=CIFAR, plan=product(("dkm", "cnn"), (100, 50), 2))
    assert [(each.size, each.seed, each.method) for each in record.planned()] == [
        (size, seed, name) for size in (50, 100) for seed in (0, 1) for name in ("dkm", "cnn")
    ]


def test_methods_sizes_and_seeds_are_added(tmp_path):
    folder = made_up(tmp_path, ("cnn",), sizes=(500, 1000), seeds=2)
    record = folder.add(Record(scale=CIFAR, plan=product(("dkm", "cnn"), (1000, 2000), 3)))
    assert record.plan == {"dkm": {1000: 3, 2000: 3}, "cnn": {500: 2, 1000: 3, 2000: 3}}
    assert list(record.plan) == ["dkm", "cnn"]
    assert folder.read() == record
    assert record.merged(Record(scale=CIFAR, plan={})) == record


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"minutes": None}, "minutes 10 and not unset"),
        ({"test_size": 50}, "test size 100 and not 50"),
        ({"whitening": "none", "preset": "paper"}, "preset quick and not paper, whitening zca and"),
        ({"dataset": "mnist"}, "dataset cifar10 and not mnist"),
    ],
)
def test_another_scale_is_refused(tmp_path, other, words):
    folder = made_up(tmp_path, ("cnn",))
    before = (tmp_path / "comparison.json").read_text()
    message = refused(
        folder.add,
        Record(scale=CIFAR.model_copy(update=other), plan=product(("dkm",), (500,), 1)),
    )
    assert f"holds a comparison at another scale ({words}" in message
    assert "choose another --output" in message
    assert (tmp_path / "comparison.json").read_text() == before


def test_folders_of_something_else_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert "is not empty" in refused(ComparisonFolder(tmp_path).check, DIGITS)
    assert "is a file" in refused(ComparisonFolder(tmp_path / "notes.txt").check, DIGITS)
    assert "it has no comparison.json" in refused(ComparisonFolder(tmp_path).read)
    assert "it does not exist" in refused(ComparisonFolder(tmp_path / "none").read)


@pytest.mark.parametrize("content", ["{", '{"scale": {}, "plan": {}}', "[]"])
def test_a_damaged_record_is_an_error(tmp_path, content):
    folder = made_up(tmp_path, ("cnn",))
    (tmp_path / "comparison.json").write_text(content)
    assert "comparison.json is damaged" in refused(folder.read)


def test_a_damaged_result_is_missing(tmp_path):
    folder = made_up(tmp_path, ("cnn",), seeds=1)
    trial = PlannedTrial("cnn", 500, 0)
    assert folder.status(trial).state == "finished"
    folder.file(trial).write_text(json.dumps({"state": "finished", "metrics": 3}))
    assert folder.status(trial).state == "missing"
    folder.write(trial, TrialResult(state="failed", error="why"))
    assert folder.status(trial).state == "failed"
    folder.write(trial, finished(0.5))
    assert folder.status(trial) == finished(0.5)


def test_two_comparisons_do_not_work_in_one_folder(tmp_path):
    with (
        ComparisonFolder(tmp_path).locked(),
        pytest.raises(InvalidInputError, match=r"a comparison is being made in .* by process"),
        ComparisonFolder(tmp_path).locked(),
    ):
        pass

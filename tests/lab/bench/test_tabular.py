"""The benchmark on tables of numbers: its data, its scores and its rows."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "tabular.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(30, 2))
    tested = np.arange(30) % 10 == np.arange(2)[:, None]
    y = 100 + 5 * X[:, 0]
    np.savez(tmp_path / "line.npz", X=X, y=y, is_test=np.packbits(tested, axis=1))
    return tmp_path


def test_a_split_holds_every_point_once(script, folder):
    first, second = (script["uci"]("line", folder, split) for split in range(2))
    assert [len(part) for part in first] == [27, 27, 3, 3]
    assert sorted([*first.y, *first.targets]) == sorted([*second.y, *second.targets])
    assert set(first.targets).isdisjoint(second.targets)


def test_classes_are_cut_at_quantiles_of_training_targets(script, folder):
    data = script["uci"]("line", folder, 0, 3)
    assert np.bincount(data.y).tolist() == [9, 9, 9]
    few = script["quantile_classes"](np.array([0.0, 1.0, 5.0]), np.array([1.0, 1.0, 1.0, 2.0]), 4)
    assert few.tolist() == [0, 0, 2]


def test_validation_scores_training_points_alone(script, folder):
    data = script["uci"]("line", folder, 0)
    found = script["reduced"](data, 10, True, 0)
    assert [len(part) for part in found] == [10, 10, 5, 5]
    assert set(found.y).isdisjoint(found.targets)
    assert set(found.targets) <= set(data.y)
    kept = script["reduced"](data, 10, False, 0)
    assert len(kept.y) == 10
    assert kept.targets is data.targets


def test_scores_of_regression_are_on_the_scale_of_the_targets(script, folder):
    data = script["uci"]("line", folder, 0)

    def mean_of_training(data, seed):
        assert data.X.mean(0) == pytest.approx([0, 0])
        assert data.y.std() == pytest.approx(1)
        return np.zeros(len(data.targets)), 1.0

    rmse, log_likelihood = script["regression_scores"](mean_of_training, data, 0)
    errors, variance = data.targets - data.y.mean(), data.y.var()
    assert rmse == pytest.approx(np.sqrt((errors**2).mean()))
    expected = -0.5 * (math.log(2 * math.pi * variance) + (errors**2).mean() / variance)
    assert log_likelihood == pytest.approx(expected)
    fitted = script["regression_scores"](script["ridge"], data, 0)
    assert fitted[0] < 0.01
    assert fitted[1] > 1


def test_a_class_without_probability_has_a_bounded_log_likelihood(script):
    data = script["bundled"]("iris", 0)
    scores = script["classification_scores"](
        lambda seed: DummyClassifier(strategy="most_frequent"), data, 0
    )
    assert scores == pytest.approx((1 / 3, math.log(1e-4) * 2 / 3))


def test_rows_and_methods_that_are_left_out(script, folder):
    def refuses(data, seed):
        raise script["TooManyError"]("more than 5 points")

    methods = {"one": lambda data, seed: (12.34 + 2 * seed, -1.0), "other": refuses}
    splits = [script["uci"]("line", folder, 0)]
    rows = list(script["rows"](methods, splits, 2))
    assert rows[0].startswith("| one | 13.3 ± 1.0 | -1.000 ± 0.000 | ")
    assert rows[1] == "| other | left out: more than 5 points | | |"
    assert script["in_words"]([0.001234], script["digits_for"](0.001234)) == "0.00123"

"""Predictions beside the truth."""

import pytest
import torch

from convdkm.prediction import ClassPrediction
from convdkm.report.outcome import Outcome, wilson


@pytest.fixture
def outcome():
    probs = torch.tensor([[0.9, 0.1], [0.45, 0.55], [0.2, 0.8], [0.99, 0.01]])
    labels = torch.tensor([0, 0, 1, 1])
    mean = torch.zeros(4, 2)
    return Outcome(
        torch.rand(4, 1, 2, 2), labels, ClassPrediction(mean, mean, probs.log(), None), ("a", "b")
    )


def test_confusions(outcome):
    assert outcome.confusion.tolist() == [[1, 1], [1, 1]]
    assert outcome.frequent_confusions(5) == [(0, 1, 1), (1, 0, 1)]
    assert outcome.wrong.tolist() == [False, True, False, True]


def test_images_worth_a_look(outcome):
    assert outcome.most_uncertain(2) == [1, 2]
    assert outcome.confidently_wrong(9) == [3, 1]
    assert outcome.confidently_wrong(1) == [3]


def test_figures(outcome):
    assert outcome.metrics["accuracy"] == 0.5
    assert outcome.reliability.count.sum() == len(outcome) == 4


def test_wilsons_interval():
    low, high = wilson(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson(0, 5)[0] == pytest.approx(0)
    assert wilson(5, 5)[1] == pytest.approx(1)

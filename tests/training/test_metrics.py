"""Metrics against plain loops and scikit-learn."""

import math

import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss, mean_absolute_error, root_mean_squared_error

from convdkm import InvalidInputError
from convdkm.prediction import ClassPrediction, Prediction, RealPrediction
from convdkm.training.metrics import (
    classification_metrics,
    prediction_metrics,
    regression_metrics,
    reliability,
)

DTYPES = [torch.float32, torch.float64]
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def from_probs(probs, dtype=torch.float64, expected_entropy=None):
    log_probs = torch.tensor(probs, dtype=torch.float64).log().to(dtype)
    blank = torch.zeros(len(log_probs), 1, dtype=dtype)
    return ClassPrediction(blank, blank, log_probs, expected_entropy)


def random_prediction(count=200, classes=7, dtype=torch.float64, sharpness=2.0):
    logits = sharpness * torch.randn(count, 50, classes, dtype=torch.float64)
    logits = logits * 0.5 + sharpness * torch.randn(count, 1, classes, dtype=torch.float64)
    log_probs = torch.log_softmax(logits, 2)
    inner = -(log_probs.exp() * log_probs).sum(2).mean(1)
    mixed = torch.logsumexp(log_probs, 1) - math.log(50)
    blank = torch.zeros(count, 1, dtype=dtype)
    prediction = ClassPrediction(blank, blank, mixed.to(dtype), inner.to(dtype))
    return prediction, torch.randint(classes, (count,))


def naive_calibration_error(probs, labels, bins=15):
    members = [[] for _ in range(bins)]
    for row, label in zip(probs, labels, strict=True):
        confidence = max(row)
        for m in range(bins):
            if m / bins < confidence <= (m + 1) / bins:
                members[m].append((confidence, float(row.index(confidence) == label)))
    error = 0.0
    for inside in members:
        if inside:
            confidence = sum(c for c, _ in inside) / len(inside)
            accuracy = sum(a for _, a in inside) / len(inside)
            error += len(inside) / len(probs) * abs(accuracy - confidence)
    return error


def naive_classification(prediction, labels):
    probs = [[math.exp(v) for v in row] for row in prediction.log_probs.double().tolist()]
    labels, count = labels.tolist(), len(probs)
    accuracy = log_likelihood = brier = entropy = information = 0.0
    for n, (row, label) in enumerate(zip(probs, labels, strict=True)):
        accuracy += row.index(max(row)) == label
        log_likelihood += math.log(row[label])
        brier += sum((p - (c == label)) ** 2 for c, p in enumerate(row))
        own_entropy = -sum(p * math.log(p) for p in row if p > 0)
        entropy += own_entropy
        if prediction.expected_entropy is not None:
            information += max(own_entropy - float(prediction.expected_entropy[n]), 0.0)
    naive = {
        "accuracy": accuracy / count,
        "log_likelihood": log_likelihood / count,
        "brier": brier / count,
        "ece": naive_calibration_error(probs, labels),
        "entropy": entropy / count,
    }
    if prediction.expected_entropy is not None:
        naive["mutual_information"] = information / count
    return naive


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 200])
@pytest.mark.parametrize("classes", [2, 7])
def test_classification_equals_plain_loops(dtype, count, classes):
    prediction, labels = random_prediction(count, classes, dtype)
    metrics = classification_metrics(prediction, labels)
    assert metrics == pytest.approx(naive_classification(prediction, labels), rel=1e-12, abs=1e-12)
    assert list(metrics)[:2] == ["accuracy", "log_likelihood"]
    assert all(type(value) is float for value in metrics.values())


@pytest.mark.parametrize("dtype", DTYPES)
def test_classification_equals_scikit_learn(dtype):
    prediction, labels = random_prediction(300, 5, dtype)
    metrics = classification_metrics(prediction, labels)
    probs = torch.softmax(prediction.log_probs.double(), 1)
    given = {"labels": range(5)}
    tolerance = TOLERANCE[dtype]
    assert metrics["log_likelihood"] == pytest.approx(
        -log_loss(labels, probs, **given), rel=tolerance
    )
    brier = brier_score_loss(labels, probs, scale_by_half=False, **given)
    assert metrics["brier"] == pytest.approx(brier, rel=tolerance)


def test_the_precision_of_the_prediction_hardly_matters():
    torch.manual_seed(1)
    double, labels = random_prediction(dtype=torch.float64)
    single = ClassPrediction(
        double.mean, double.variance, double.log_probs.float(), double.expected_entropy.float()
    )
    assert classification_metrics(single, labels) == pytest.approx(
        classification_metrics(double, labels), rel=1e-5
    )


def taken(prediction, rows):
    """The predictions of some images."""
    return ClassPrediction(
        prediction.mean[rows],
        prediction.variance[rows],
        prediction.log_probs[rows],
        prediction.expected_entropy[rows],
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_metrics_do_not_depend_on_how_batches_were_cut(dtype):
    whole, labels = random_prediction(101, dtype=dtype)
    parts = [taken(whole, rows) for rows in torch.arange(101).split(17)]
    assert classification_metrics(ClassPrediction.join(parts), labels) == classification_metrics(
        whole, labels
    )
    shuffle = torch.randperm(101)
    assert classification_metrics(taken(whole, shuffle), labels[shuffle]) == pytest.approx(
        classification_metrics(whole, labels), rel=1e-12
    )


def test_certain_predictions():
    certain = from_probs([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    metrics = classification_metrics(certain, torch.tensor([0, 0, 1, 1]))
    assert metrics == {"accuracy": 1, "log_likelihood": 0, "brier": 0, "ece": 0, "entropy": 0}
    metrics = classification_metrics(certain, torch.tensor([0, 0, 1, 0]))
    assert metrics["ece"] == 0.25
    assert metrics["brier"] == 0.5
    assert metrics["log_likelihood"] == -math.inf
    bins = reliability(certain, torch.tensor([0, 0, 1, 0]))
    assert bins.count.tolist() == [0] * 14 + [4]


def test_uniform_predictions():
    uniform = from_probs([[0.25] * 4] * 8)
    metrics = classification_metrics(uniform, torch.tensor([0, 1, 2, 3] * 2))
    assert metrics["log_likelihood"] == pytest.approx(-math.log(4))
    assert metrics["entropy"] == pytest.approx(math.log(4))
    assert metrics["brier"] == pytest.approx(0.75)
    assert metrics["ece"] == pytest.approx(0)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    prediction = from_probs([[0.5, 0.5], [0.75, 0.25], [0.75 + 1e-9, 0.25 - 1e-9], [1.0, 0.0]])
    bins = reliability(prediction, torch.tensor([0, 1, 0, 0]), bins=4)
    assert bins.count.tolist() == [0, 1, 1, 2]
    assert bins.edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert bins.accuracy.isnan().tolist() == [True, False, False, False]
    assert bins.accuracy[1:].tolist() == [1, 0, 1]
    assert bins.confidence[1:].tolist() == pytest.approx([0.5, 0.75, 0.875])


def test_a_confidence_rounded_above_one_is_in_the_last_bin():
    blank = torch.zeros(1, 1)
    prediction = ClassPrediction(blank, blank, torch.tensor([[1e-7, -40.0]]), None)
    bins = reliability(prediction, torch.tensor([0]))
    assert bins.count.tolist() == [0] * 14 + [1]
    assert bins.expected_calibration_error == pytest.approx(0, abs=1e-6)


def test_nan_is_not_hidden():
    metrics = classification_metrics(from_probs([[math.nan] * 2, [0.5, 0.5]]), torch.tensor([0, 1]))
    assert all(math.isnan(metrics[name]) for name in ("log_likelihood", "brier", "ece", "entropy"))


@pytest.mark.parametrize("bins", [1, 2, 15, 100])
def test_reliability_counts_every_image_once(bins):
    prediction, labels = random_prediction(150)
    found = reliability(prediction, labels, bins)
    assert int(found.count.sum()) == 150
    filled = found.count > 0
    share = found.count[filled] / 150
    metrics = classification_metrics(prediction, labels)
    assert float((share * found.accuracy[filled]).sum()) == pytest.approx(metrics["accuracy"])
    assert found.confidence.isnan().tolist() == (~filled).tolist()
    assert torch.all(found.confidence[filled] <= found.edges[1:][filled] + 1e-15)
    assert torch.all(found.confidence[filled] > found.edges[:-1][filled])
    naive = naive_calibration_error(prediction.probs.tolist(), labels.tolist(), bins)
    assert found.expected_calibration_error == pytest.approx(naive, rel=1e-9)


def test_mutual_information_only_where_it_is_defined():
    assert "mutual_information" not in classification_metrics(
        from_probs([[0.5, 0.5]]), torch.tensor([0])
    )
    known = from_probs([[0.5, 0.5]], expected_entropy=torch.tensor([0.25]))
    metrics = classification_metrics(known, torch.tensor([0]))
    assert metrics["mutual_information"] == pytest.approx(math.log(2) - 0.25)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("count", "outputs"), [(1, 1), (40, 1), (40, 3)])
def test_regression_equals_plain_loops(dtype, count, outputs):
    mean = torch.randn(count, outputs, dtype=dtype)
    variance = torch.rand(count, outputs, dtype=dtype) + 0.1
    targets = mean + torch.randn(count, outputs, dtype=dtype)
    metrics = regression_metrics(RealPrediction(mean, variance / 2, variance), targets)
    log_likelihood = 0.0
    for m, v, t in zip(mean.tolist(), variance.tolist(), targets.tolist(), strict=True):
        for a, b, c in zip(m, v, t, strict=True):
            log_likelihood -= 0.5 * ((c - a) ** 2 / b + math.log(2 * math.pi * b))
    flat = targets.double().flatten().numpy(), mean.double().flatten().numpy()
    expected = {
        "rmse": root_mean_squared_error(*flat),
        "mae": mean_absolute_error(*flat),
        "log_likelihood": log_likelihood / count,
    }
    assert metrics == pytest.approx(expected, rel=10 * TOLERANCE[dtype])


def test_regression_takes_flat_targets_and_rejects_others():
    prediction = RealPrediction(torch.zeros(3, 1), torch.ones(3, 1), torch.ones(3, 1))
    assert regression_metrics(prediction, torch.ones(3))["rmse"] == 1
    with pytest.raises(InvalidInputError, match=r"\(3, 1\), got \(3, 2\)"):
        regression_metrics(prediction, torch.ones(3, 2))
    with pytest.raises(InvalidInputError, match="3 predictions, but 4 targets"):
        regression_metrics(prediction, torch.ones(4))


def test_dispatch_by_the_kind_of_prediction():
    prediction, labels = random_prediction(20)
    assert prediction_metrics(prediction, labels) == classification_metrics(prediction, labels)
    real = RealPrediction(torch.zeros(3, 1), torch.ones(3, 1), torch.ones(3, 1))
    assert set(prediction_metrics(real, torch.ones(3))) == {"rmse", "mae", "log_likelihood"}
    with pytest.raises(InvalidInputError, match="no metrics for a Prediction"):
        prediction_metrics(Prediction(real.mean, real.variance), torch.ones(3))


def test_bad_input_is_explained():
    prediction, labels = random_prediction(20)
    with pytest.raises(InvalidInputError, match="20 predictions, but 19 targets"):
        classification_metrics(prediction, labels[1:])
    with pytest.raises(InvalidInputError, match="labels must be integers"):
        reliability(prediction, labels.float())
    with pytest.raises(InvalidInputError, match="between 0 and 6"):
        classification_metrics(prediction, labels + 7)
    with pytest.raises(InvalidInputError, match="bins must be a positive integer"):
        reliability(prediction, labels, bins=0)
    with pytest.raises(InvalidInputError, match="at least one"):
        classification_metrics(*random_prediction(0))

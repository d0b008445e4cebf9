"""Spherical k-means, the classifier on top, and both networks as baselines."""

import time

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from convdkm.errors import InvalidInputError, NotInitialisedError
from convdkm.lab.baselines.ckn import SupervisedCKN, UnsupervisedCKN
from convdkm.lab.baselines.ckn_classifier import logistic_regression
from convdkm.lab.baselines.ckn_layer import nearest, spherical_kmeans

SMALL = {"layers": ((6, 3, 2), (8, 2, 2)), "patches": 500}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_kmeans_keeps_the_norm_and_improves():
    points = torch.randn(400, 5, dtype=torch.float64)
    anchors, curve = spherical_kmeans(points, 12, seeded())
    torch.testing.assert_close(anchors.norm(dim=1), torch.ones(12, dtype=torch.float64))
    assert curve == sorted(curve)
    assert curve[-1] > curve[0] + 0.02
    mean = nearest(F.normalize(points, dim=1), anchors)[0].mean()
    assert float(mean) == pytest.approx(curve[-1], rel=1e-9)


def test_kmeans_finds_the_directions_there_are():
    directions = F.normalize(torch.randn(4, 10, dtype=torch.float64), dim=1)
    scale = 0.5 + torch.rand(200, 1, dtype=torch.float64)
    points = scale * (directions.repeat(50, 1) + 0.01 * torch.randn(200, 10, dtype=torch.float64))
    best = max((spherical_kmeans(points, 4, seeded(s)) for s in range(8)), key=lambda r: r[1][-1])
    cosines = best[0] @ directions.mT
    assert float(cosines.max(0).values.min()) > 0.999


def test_kmeans_moves_anchors_that_serve_nobody():
    # Many copies of one direction: random starts coincide, and all but one of them serve nobody.
    points = torch.cat([torch.tensor([[1.0, 0.0, 0.0]]).repeat(97, 1), torch.eye(3)]).double()
    anchors, curve = spherical_kmeans(points, 3, seeded())
    assert curve[-1] == pytest.approx(1.0)
    assert float((anchors @ torch.eye(3).double()).max(0).values.min()) == pytest.approx(1.0)


def test_kmeans_leaves_zeros_out_and_counts_what_is_left():
    points = torch.cat([torch.zeros(50, 3), torch.randn(4, 3)])
    anchors, _ = spherical_kmeans(points, 4, seeded())
    assert anchors.isfinite().all()
    with pytest.raises(InvalidInputError, match=r"5 anchors need as many patches .* are 4; use"):
        spherical_kmeans(points, 5, seeded())
    with pytest.raises(InvalidInputError, match="3 values that are not finite"):
        spherical_kmeans(torch.full((1, 3), torch.nan), 1, seeded())


def clusters(count, seed):
    generator = seeded(seed)
    labels = torch.arange(count) % 3
    centres = torch.tensor([[2.0, 0, 0, 0], [0, 2.0, 0, 0], [0, 0, 2.0, 0]])
    return 5 + centres[labels] + torch.randn(count, 4, generator=generator), labels


def test_the_classifier_is_that_of_scikit_learn():
    x, y = clusters(60, 0)
    ours = logistic_regression(x, y, 3, strengths=[0.01])
    inputs = ((x - ours.mean) / ours.scale).double().numpy()
    theirs = LogisticRegression(C=1 / (0.01 * 60), tol=1e-10, max_iter=5000).fit(inputs, y.numpy())
    expected = theirs.predict_log_proba(inputs)
    found = torch.log_softmax(ours(x.double()), 1).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_the_strength_is_the_best_on_held_out_images():
    x, y = clusters(60, 0)
    strengths = (10.0, 0.1, 1e-3, 1e-6)
    chosen = logistic_regression(x, y, 3, strengths=strengths, seed=4).strength
    from convdkm.data.splits import stratified

    held = stratified(y, 12, 4, left=1)
    keep = torch.ones(60, dtype=torch.bool)
    keep[held] = False
    losses = {}
    for strength in strengths:
        found = logistic_regression(x[keep], y[keep], 3, strengths=[strength])
        losses[strength] = float(F.cross_entropy(found(x[held].double()), y[held]))
    # Centring is by all images there and by those that are left here: hence only nearly the least.
    assert losses[chosen] < min(losses.values()) + 0.02
    assert chosen < 10.0


def test_one_image_a_class_is_enough_and_no_time_is_too():
    x, y = clusters(3, 0)
    assert logistic_regression(x, y, 3).strength == 0.1
    x, y = clusters(60, 0)
    hurried = logistic_regression(x, y, 3, stop=lambda: True)
    assert hurried.loss(x.double(), y) < np.log(3)
    with pytest.raises(InvalidInputError, match="strengths must be numbers above zero"):
        logistic_regression(x, y, 3, strengths=[0.0])


@pytest.mark.parametrize("kind", [UnsupervisedCKN, SupervisedCKN])
def test_it_learns_and_is_deterministic(kind, stripes):
    (images, labels), (test_images, test_labels) = stripes
    options = {**SMALL, "epochs": 3} if kind is SupervisedCKN else SMALL
    baseline = kind(**options)
    said = []
    baseline.tell = said.append
    assert baseline.fit(images, labels) is baseline
    assert float((baseline.predict(test_images) == test_labels).double().mean()) > 0.8
    chances = baseline.probabilities(test_images).double()
    torch.testing.assert_close(chances.sum(1), torch.ones(60, dtype=torch.float64))
    assert baseline.parameters == 6 * 9 + 8 * 6 * 4 + 3 * (8 * 2 * 2 + 1)
    assert said[0].startswith("layer 1 of 2: 6 anchors")
    again = kind(**options).fit(images, labels)
    assert torch.equal(again.scores(test_images), baseline.scores(test_images))
    other = kind(**options, seed=1).fit(images, labels)
    assert not torch.equal(other.scores(test_images), baseline.scores(test_images))
    for layer in baseline.network:
        norms = layer.anchors.detach().norm(dim=1)
        torch.testing.assert_close(norms, torch.ones_like(norms))


def test_supervision_lowers_the_loss(stripes):
    (images, labels), _ = stripes
    few = {"layers": ((3, 3, 2),), "patches": 300}
    before = UnsupervisedCKN(**few).fit(images, labels)
    after = SupervisedCKN(**few, epochs=20, learning_rate=0.01).fit(images, labels)

    def loss(baseline):
        return float(baseline.classifier.loss(baseline.features(images).double(), labels))

    assert loss(after) < 0.9 * loss(before)
    assert after.curve[-1] < after.curve[0]
    assert not torch.allclose(before.network[0].anchors, after.network[0].anchors, atol=1e-3)


@pytest.mark.parametrize("kind", [UnsupervisedCKN, SupervisedCKN])
def test_it_stops_in_time(kind, stripes):
    (images, labels), _ = stripes
    baseline = kind(**SMALL, epochs=100_000) if kind is SupervisedCKN else kind(**SMALL)
    baseline.minutes = 1 / 60
    start = time.process_time()  # of this process: others may keep it waiting
    baseline.fit(images, labels)
    assert time.process_time() - start < 20
    assert baseline.scores(images).isfinite().all()


def test_a_start_that_takes_long_leaves_time_for_supervision(monkeypatch, stripes):
    (images, labels), _ = stripes
    shares = []

    class Spent:
        """A third of the time is gone from the beginning."""

        share, seconds_left = 0.34, 1.0

        def __init__(self, minutes):
            pass

        def over(self):
            shares.append(self.share)
            return False

    monkeypatch.setattr("convdkm.lab.baselines.ckn.Budget", Spent)
    baseline, said = SupervisedCKN(**SMALL, epochs=2), []
    baseline.tell = said.append
    baseline.fit(images, labels)
    assert "after 1 iterations" in said[0]
    assert "λ = 0.1" in said[2]  # the first that is tried
    assert len(baseline.curve) == 2
    assert shares


def test_a_set_that_does_not_fit_is_foreseen(monkeypatch):
    images, labels = torch.zeros(50, 1, 8, 8), torch.arange(50) % 3
    baseline = UnsupervisedCKN(**SMALL)
    baseline.foresee(images, labels)
    monkeypatch.setattr("convdkm.lab.baselines.ckn.available_memory", lambda: 20_000)
    with pytest.raises(InvalidInputError, match=r"50 images of 32 features .* use 13 images"):
        baseline.foresee(images, labels)


def test_bad_use_is_refused(stripes):
    (images, labels), _ = stripes
    with pytest.raises(NotInitialisedError, match="UnsupervisedCKN has to be fitted"):
        UnsupervisedCKN().predict(images)
    with pytest.raises(InvalidInputError, match="triples of filters"):
        UnsupervisedCKN(layers=((6, 3),))
    with pytest.raises(InvalidInputError, match="subsampling must be a positive"):
        UnsupervisedCKN(layers=((6, 3, 0),))
    with pytest.raises(InvalidInputError, match="epochs must be"):
        SupervisedCKN(epochs=0)
    with pytest.raises(InvalidInputError, match=r"images must be floating-point"):
        UnsupervisedCKN().fit(images[0], labels)
    fitted = UnsupervisedCKN(**SMALL).fit(images, labels)
    with pytest.raises(InvalidInputError, match=r"\(N, 1, 8, 8\) as those of fit.*\(90, 1, 8, 7\)"):
        fitted.predict(images[..., 1:])
    with pytest.raises(InvalidInputError, match="64 anchors need as many patches"):
        UnsupervisedCKN().fit(torch.zeros_like(images), labels)

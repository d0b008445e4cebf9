"""The estimator on images: how well it predicts, and the layouts it takes."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from convdkm.data import ZCA, Standardise
from convdkm.estimators import ConvDKMClassifier
from convdkm.estimators.shapes import full_shape, shape_and_layout


def small(**options):
    defaults = {"inducing": (6, 8), "epochs": 2, "random_state": 0, "precision": "float64"}
    return ConvDKMClassifier(**{**defaults, **options})


@pytest.fixture(scope="module")
def digits():
    return load_digits(return_X_y=True)


@pytest.fixture(scope="module")
def few(digits):
    rows, labels = digits
    return rows[:80], labels[:80]


def test_reads_digits_that_it_has_not_seen(digits):
    rows, labels = digits
    images = rows.reshape(-1, 8, 8)
    images, held_out, labels, expected = train_test_split(
        images, labels, train_size=500, random_state=0, stratify=labels
    )
    classifier = ConvDKMClassifier((16, 32), epochs=10, random_state=0).fit(images, labels)
    assert classifier.score(held_out, expected) >= 0.95
    assert classifier.predict_proba(held_out).sum(1) == pytest.approx(np.ones(len(held_out)))
    log_prob = classifier.predictive(held_out).log_prob(torch.as_tensor(expected))
    assert float(log_prob.mean()) > -0.25


def test_layouts_agree(few):
    rows, labels = few
    grey = rows.reshape(-1, 8, 8)
    layouts = (rows, grey, grey[:, None], grey[..., None], grey[:, None].tolist())
    expected = small().fit(grey, labels).predict_proba(grey)
    for layout in layouts:
        classifier = small(image_shape=(8, 8)).fit(layout, labels)
        assert classifier.image_shape_ == (1, 8, 8)
        assert classifier.n_features_in_ == 64
        assert (classifier.predict_proba(layout) == expected).all()
    for layout in layouts:
        assert (classifier.predict_proba(layout) == expected).all()


def test_colour_images_with_channels_first_or_last():
    generator = np.random.default_rng(0)
    first = generator.normal(size=(40, 3, 6, 5))
    labels = (first[:, 0].mean((1, 2)) > 0).astype(int)
    last = np.moveaxis(first, 1, -1)
    classifier = small().fit(first, labels)
    assert classifier.image_shape_ == (3, 6, 5)
    expected = classifier.predict_proba(first)
    assert (classifier.predict_proba(last) == expected).all()
    assert (classifier.predict_proba(first.reshape(40, -1)) == expected).all()
    assert (small().fit(last, labels).predict_proba(first) == expected).all()


@pytest.mark.parametrize(
    ("image", "expected", "shape", "channels_last"),
    [
        ((8, 9), None, (1, 8, 9), False),
        ((3, 8, 9), None, (3, 8, 9), False),
        ((8, 9, 3), None, (3, 8, 9), True),
        ((3, 8, 3), None, (3, 8, 3), False),
        ((5, 8, 9), None, (5, 8, 9), False),
        ((5, 8, 3), (5, 8, 3), (5, 8, 3), False),
        ((8, 9, 2), (2, 8, 9), (2, 8, 9), True),
    ],
)
def test_layouts_that_are_guessed_and_known(image, expected, shape, channels_last):
    assert shape_and_layout(image, expected) == (shape, channels_last)


def test_rows_without_a_shape_are_signals(few):
    rows, labels = few
    classifier = small().fit(rows, labels)
    assert classifier.image_shape_ == full_shape((64,)) == (1, 64)
    expected = classifier.predict_proba(rows)
    assert (small(image_shape=(64,)).fit(rows, labels).predict_proba(rows) == expected).all()
    for given in ({"crop": 1}, {"options": {"flip": True}}, {"options": {"cutout": 3}}):
        with pytest.raises(ValueError, match=r"(crop|flip|cutout) is for images; these"):
            small(**given).fit(rows, labels)


def test_the_whitening_that_fits_is_chosen(few):
    rows, labels = few
    images = rows.reshape(-1, 8, 8)
    enough = small(whitening="auto", epochs=1).fit(images, labels)
    assert isinstance(enough.whitening_, ZCA)
    with pytest.warns(UserWarning, match="standardise in place of zca: .*63 images of 64 values"):
        too_few = small(whitening="auto", epochs=1).fit(images[:63], labels[:63])
    assert isinstance(too_few.whitening_, Standardise)
    with pytest.warns(UserWarning, match="63 images of 64 values"):
        asked_for = small(whitening="zca", epochs=1).fit(images[:63], labels[:63])
    assert isinstance(asked_for.whitening_, ZCA)


@pytest.mark.parametrize("whitening", ["none", "standardise", "zca", "zca-paper"])
def test_whitening_and_augmentation(few, whitening):
    rows, labels = few
    images = rows.reshape(-1, 8, 8)
    classifier = small(whitening=whitening, crop=1, flip=True, epochs=1).fit(images, labels)
    assert np.isfinite(classifier.predict_log_proba(images)).all()


def test_clone_pickle_and_repeat(few):
    rows, labels = few
    images = rows.reshape(-1, 8, 8)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    classifier = small(crop=1).fit(images, labels)
    assert torch.rand(1) == expected
    again = clone(classifier).fit(images, labels)
    loaded = pickle.loads(pickle.dumps(classifier))
    for other in (again, loaded):
        assert (other.predict_proba(rows) == classifier.predict_proba(images)).all()


def test_pipeline_and_grid_search(few):
    rows, labels = few
    names = np.array(list("abcdefghij"))[labels]
    pipeline = make_pipeline(FunctionTransformer(), small(epochs=1, image_shape=(8, 8)))
    search = GridSearchCV(pipeline, {"convdkmclassifier__nu": [0.1, 1.0]}, cv=2).fit(rows, names)
    assert set(search.predict(rows)) <= set(names)


def test_inducing_points_are_no_more_than_the_patches():
    images = np.random.default_rng(0).normal(size=(3, 2, 2))
    classifier = small(inducing=(64, 64, 64)).fit(images, [0, 1, 1])
    sizes = [
        stage.block1.body.first.gram.num_inducing for stage in list(classifier.model_.body)[1:4]
    ]
    assert sizes == [12, 3, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_shape": (8, 9)}, r"image_shape \(1, 8, 9\) has 72 pixels, but X has 64 features"),
        ({"image_shape": (1, 2, 4, 8)}, r"image_shape must be \(C, H, W\) or \(H, W\)"),
        ({"image_shape": 64}, "image_shape must hold a number for each axis, got 64"),
        ({"image_shape": (0, 64)}, "image_shape must hold positive integers, got 0"),
        ({"inducing": 16}, "inducing must hold a number for each stage, got 16"),
        ({"blocks": (1, 1, 1)}, "for each stage"),
        ({"blocks": 0}, "blocks must be above 0, got 0"),
        ({"whitening": "bleach"}, "whitening must be 'auto', 'zca', "),
        ({"crop": -1, "image_shape": (8, 8)}, "crop must be at least 0, got -1"),
    ],
)
def test_wrong_parameters_are_named_when_fitting(few, options, message):
    with pytest.raises(ValueError, match=message):
        small(**options).fit(*few)


def test_wrong_images_are_refused(few):
    rows, labels = few
    images = rows.reshape(-1, 8, 8)
    classifier = small(epochs=1).fit(images, labels)
    with pytest.raises(ValueError, match=r"images must have shape \(1, 8, 8\), got \(8, 7\)"):
        classifier.predict(images[:, :, :7])
    with pytest.raises(
        ValueError, match="X has 63 features, but ConvDKMClassifier is expecting 64"
    ):
        classifier.predict(rows[:, :63])
    with pytest.raises(ValueError, match=r"images must have shape \(1, 8, 9\), got \(8, 8\)"):
        small(image_shape=(8, 9)).fit(images, labels)
    with pytest.raises(ValueError, match="5 axes"):
        small().fit(images[:, None, None], labels)
    with pytest.raises(ValueError, match="NaN"):
        classifier.predict(np.full((2, 8, 8), np.nan))

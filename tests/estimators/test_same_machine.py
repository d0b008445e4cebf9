"""The estimator, ``fit`` and ``convdkm train`` make the same machine, bit for bit."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import convdkm as dkm
from convdkm.cli import run as run_command
from convdkm.estimators import ConvDKMClassifier, DKMClassifier
from convdkm.estimators.base import FORMAT
from convdkm.presets import preset
from convdkm.training.sources import drawn


def assert_same(classifier, run):
    for ours, theirs in ((classifier.model_, run.model), (classifier.whitening_, run.whitening)):
        state, expected = ours.state_dict(), theirs.state_dict()
        assert list(state) == list(expected)
        for name, value in expected.items():
            assert torch.equal(state[name], value), name
    assert repr(classifier.model_) == repr(run.model)


def test_as_the_command_line_trains_the_digits(tmp_path):
    flags = ["--epochs=1", "--inducing=6,8", "--train-size=150", "--seed=3"]
    assert run_command(["train", "digits", *flags, "-o", str(tmp_path / "run"), "-q"]) == 0
    run = dkm.Run.open(tmp_path / "run")
    data = drawn(run.config).dataset
    classifier = ConvDKMClassifier((6, 8), epochs=1, random_state=3)
    classifier.fit(data.train_images.numpy(), data.train_labels.numpy())
    assert_same(classifier, run)
    found = run.predict(data.test_images).log_probs.numpy()
    assert np.allclose(classifier.predict_log_proba(data.test_images.numpy()), found, atol=1e-4)


@pytest.mark.parametrize("name", ["quick", "paper"])
def test_as_fit_trains_arrays_by_a_preset(name):
    rows, labels = load_digits(return_X_y=True)
    images = (rows.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    shared = {"inducing": (6, 8), "blocks": 1, "epochs": 2, "batch_size": 32}
    more = {"train_size": None, "gram_scale": 3.0, "samples": 50, "calibrate": 64}
    more |= {"mixing": "identity", "alternate_flips": True, "cutout": 3}
    more |= {"lookahead": 3, "nu_start": 0.1}
    data = (images[:100], labels[:100], images[100:120], labels[100:120])
    run = dkm.fit(name, data, **shared, **more, seed=7)
    classifier = ConvDKMClassifier(
        **shared, preset=name, dataset="arrays", options=more, random_state=7
    )
    assert_same(classifier.fit(images[:100], labels[:100]), run)
    recipe = preset(name).config("arrays").training
    assert (recipe.crop, recipe.flip) == (4, True)  # so that it is the augmented path too
    assert isinstance(run.whitening, dkm.data.ZCA)


@pytest.mark.parametrize(("steps", "epochs"), [(10, 5), (13, 7)])
def test_the_epochs_of_the_preset_or_more_for_few_images(monkeypatch, steps, epochs):
    monkeypatch.setattr("convdkm.estimators.images.LEAST_STEPS", steps)
    rows, labels = load_digits(return_X_y=True)
    options = {"inducing": (4,), "blocks": 1, "batch_size": 10, "dataset": "images"}
    classifier = ConvDKMClassifier(**options, whitening="none", random_state=0)
    assert classifier.fit(rows[:20].reshape(-1, 8, 8), labels[:20]).epochs_ == epochs


@pytest.mark.parametrize("kind", [ConvDKMClassifier, DKMClassifier])
def test_a_pickle_of_an_earlier_version_predicts_and_keeps_its_kernel(kind, monkeypatch):
    rows, labels = load_digits(return_X_y=True)
    rows, labels = rows[:80], labels[:80]
    size = {"inducing": (6, 8)} if kind is ConvDKMClassifier else {"inducing": 8, "depth": 1}
    classifier = kind(**size, epochs=1, kernel="arc-cosine", random_state=0).fit(rows, labels)
    state = classifier.__getstate__()
    for name in (FORMAT, "preset", "dataset", "options"):
        state.pop(name, None)
    monkeypatch.setattr(kind, "__getstate__", lambda _: state)
    pickled = pickle.dumps(classifier, protocol=2)
    monkeypatch.undo()
    assert (b"convdkm.ops.window" in pickled) == (kind is ConvDKMClassifier)
    earlier = pickle.loads(pickled.replace(b"convdkm.ops.window", b"convdkm.layers.window"))
    assert (earlier.predict_proba(rows) == classifier.predict_proba(rows)).all()
    assert earlier.get_params() == {**classifier.get_params(), "kernel": "arc-cosine-learned"}
    now = pickle.loads(pickle.dumps(classifier))
    assert now.get_params() == classifier.get_params()

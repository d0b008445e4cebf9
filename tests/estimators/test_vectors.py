"""Estimators on vectors: how well they predict, and how they fit into scikit-learn."""

import pickle

import numpy as np
import pandas
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

import convdkm as dkm
from convdkm.estimators import DKMClassifier, DKMRegressor
from convdkm.kernels import KERNELS


def small_classifier(**options):
    return DKMClassifier(**{"inducing": 15, "depth": 1, "epochs": 25, "random_state": 0, **options})


def small_regressor(**options):
    return DKMRegressor(**{"inducing": 15, "depth": 1, "epochs": 25, "random_state": 0, **options})


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(return_X_y=True)


@pytest.fixture(scope="module")
def fitted_regressor(diabetes):
    X, y = diabetes
    return DKMRegressor(random_state=0).fit(X[::2], y[::2])


# -- quality ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "accuracy", "log_likelihood"),
    [(load_iris, 0.9, -0.3), (load_wine, 0.93, -0.25), (load_breast_cancer, 0.94, -0.2)],
)
def test_default_classifier_does_well_on_held_out_data(load, accuracy, log_likelihood):
    X, y = load(return_X_y=True)
    X, held_out, y, labels = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
    classifier = DKMClassifier(random_state=0).fit(X, y)
    assert classifier.score(held_out, labels) >= accuracy
    log_prob = classifier.predictive(held_out).log_prob(torch.as_tensor(labels))
    assert float(log_prob.mean()) >= log_likelihood


def test_default_regressor_does_well_on_held_out_data(diabetes, fitted_regressor):
    X, y = diabetes
    held_out, targets = X[1::2], y[1::2]
    assert fitted_regressor.score(held_out, targets) >= 0.35
    mean, std = fitted_regressor.predict(held_out, return_std=True)
    assert mean.shape == std.shape == targets.shape
    covered = np.abs(targets - mean) < 1.645 * std  # 90% of a normal distribution
    assert 0.8 <= covered.mean() <= 0.98


def test_noise_is_part_of_the_deviation(diabetes, fitted_regressor):
    X, _ = diabetes
    prediction = fitted_regressor.predictive(X[:5])
    _, std = fitted_regressor.predict(X[:5], return_std=True)
    noise = float(fitted_regressor.model_.likelihood.noise) * fitted_regressor.target_scaler_.var_
    assert np.allclose(std**2, prediction.variance[:, 0].numpy() + noise)


def test_several_targets_have_scales_of_their_own():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(120, 2))
    y = np.stack([X[:, 0], 1e4 + 1e3 * X[:, 1], np.full(120, 7.0)], 1)
    mean, std = small_regressor(epochs=60).fit(X, y).predict(X, return_std=True)
    assert mean.shape == std.shape == (120, 3)
    assert np.abs(mean[:, :2] - y[:, :2]).mean(0) == pytest.approx([0, 0], abs=200)
    assert np.corrcoef(mean[:, 0], y[:, 0])[0, 1] > 0.95
    assert np.corrcoef(mean[:, 1], y[:, 1])[0, 1] > 0.95
    assert mean[:, 2] == pytest.approx(7, abs=1)


def test_a_column_of_targets_gives_a_column(diabetes):
    X, y = (values[:40] for values in diabetes)
    flat = small_regressor(epochs=3).fit(X, y).predict(X)
    column = small_regressor(epochs=3).fit(X, y[:, None]).predict(X)
    assert flat.shape == (40,)
    assert column.shape == (40, 1)
    assert np.allclose(column[:, 0], flat)


def test_the_regressor_finds_the_features_that_matter_and_a_noise_that_is_small():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(200, 6))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.01 * generator.normal(size=200)
    options = {"inducing": 30, "depth": 1, "random_state": 0}
    regressor = DKMRegressor(**options).fit(X, y)
    scales = regressor.model_.input.log_scales.exp()
    assert scales[:2].min() > 2 * scales[2:6].max()
    assert float(regressor.model_.likelihood.noise) < 0.01
    plain = DKMRegressor(**options, learn_scales=False, epochs=2).fit(X, y)
    assert plain.model_.input.log_scales is None


def test_defaults_of_the_regressor_follow_the_number_of_samples(diabetes, monkeypatch):
    def weights(regressor):
        return [
            layer.nu for layer in regressor.model_.modules() if isinstance(layer, dkm.GramLayer)
        ]

    X, y = (np.tile(values, (20, 1) if values.ndim == 2 else 20) for values in diabetes)
    monkeypatch.setattr(DKMRegressor, "least_steps", 3)
    monkeypatch.setattr("convdkm.estimators.vectors.LEAST_EPOCHS", 1)
    for count, nu, epochs in ((250, 120.0, 3), (1000, 15.0, 1), (8000, 10.0, 1)):
        regressor = DKMRegressor(inducing=5, random_state=0).fit(X[:count], y[:count])
        assert [layer.nu for layer in regressor.model_.modules() if hasattr(layer, "nu")] == [
            nu
        ] * 2
        assert regressor.epochs_ == epochs
        assert regressor.nu is None
    given = DKMRegressor(inducing=5, nu=[1.0, 2.0], epochs=1).fit(X[:50], y[:50])
    assert weights(given) == [1.0, 2.0]


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_targets_without_noise(precision):
    X = np.linspace(-2, 2, 60)[:, None]
    regressor = DKMRegressor(inducing=10, depth=1, precision=precision, random_state=0)
    for y in (X[:, 0], np.full(60, 3.0)):
        mean, std = regressor.fit(X, y).predict(X, return_std=True)
        assert np.abs(mean - y).max() < 0.05
        assert np.isfinite(std).all()
        assert std.max() < 0.2


# -- labels and probabilities ----------------------------------------------------------------------


def test_labels_may_be_strings(iris):
    X, y = iris
    names = np.array(["setosa", "versicolor", "virginica"])
    by_name, by_number = small_classifier().fit(X, names[y]), small_classifier().fit(X, y)
    assert by_name.classes_.tolist() == names.tolist()
    assert (by_name.predict(X) == names[by_number.predict(X)]).all()
    assert by_name.score(X, names[y]) > 0.9


def test_probabilities_entropy_and_mutual_information(iris):
    X, y = iris
    classifier = small_classifier().fit(X, y)
    probabilities, prediction = classifier.predict_proba(X), classifier.predictive(X)
    assert np.allclose(probabilities.sum(1), 1)
    assert np.allclose(np.log(probabilities), classifier.predict_log_proba(X))
    assert np.allclose(probabilities, prediction.probs.numpy())
    assert (prediction.mutual_information <= prediction.entropy).all()
    far = classifier.predictive(X + 20 * X.std(0) * np.array([1, -1, 1, -1]))
    assert far.mutual_information.mean() > 3 * prediction.mutual_information.mean()


# -- in scikit-learn -------------------------------------------------------------------------------


def test_pipeline_grid_search_and_cross_validation(iris):
    X, y = iris
    pipeline = make_pipeline(MinMaxScaler(), small_classifier(epochs=30))
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.85
    grid = {"dkmclassifier__inducing": np.array([8, 15]), "dkmclassifier__nu": [1.0]}
    search = GridSearchCV(pipeline, grid, cv=2, n_jobs=2).fit(X, y)
    assert search.best_score_ > 0.85
    assert search.best_estimator_[-1].model_.input.num_inducing in (8, 15)


def test_an_integer_makes_fits_repeatable_and_leaves_the_global_generators_alone(iris):
    X, y = iris
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    expected = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    first = small_classifier(batch_size=32, epochs=3).fit(X, y)
    assert (torch.rand(1), np.random.rand()) == expected  # noqa: NPY002
    second = clone(first).fit(X, y)
    assert (first.predict_proba(X) == second.predict_proba(X)).all()
    other = small_classifier(batch_size=32, epochs=3, random_state=1).fit(X, y)
    assert (first.predict_proba(X) != other.predict_proba(X)).any()


def test_a_fitted_estimator_can_be_pickled(iris, diabetes):
    X, y = iris
    classifier = small_classifier(epochs=3).fit(X, y)
    loaded = pickle.loads(pickle.dumps(classifier))
    assert (loaded.predict_proba(X) == classifier.predict_proba(X)).all()
    X, y = (values[:50] for values in diabetes)
    regressor = small_regressor(epochs=3).fit(X, y)
    loaded = pickle.loads(pickle.dumps(regressor))
    assert (loaded.predict(X, return_std=True)[1] == regressor.predict(X, return_std=True)[1]).all()


def test_feature_names_are_remembered(iris):
    X, y = iris
    frame = pandas.DataFrame(X, columns=list("abcd"))
    classifier = small_classifier(epochs=2).fit(frame, y)
    assert classifier.feature_names_in_.tolist() == list("abcd")


# -- awkward data ----------------------------------------------------------------------------------


def test_duplicates_constant_features_and_few_samples():
    X = np.repeat(np.array([[0.0, 1.0], [2.0, 1.0], [3.0, 1.0]]), 10, axis=0)
    y = np.repeat([0, 1, 1], 10)
    classifier = DKMClassifier(epochs=30, random_state=0).fit(X, y)
    assert classifier.model_.input.num_inducing == 3
    assert classifier.score(X, y) == 1
    one = DKMRegressor(epochs=5, random_state=0).fit([[1.0, 2.0]], [3.0])
    assert one.predict([[1.0, 2.0]]) == pytest.approx([3.0])
    constant = DKMRegressor(epochs=5, random_state=0).fit(np.ones((6, 2)), np.arange(6.0))
    assert constant.predict(np.ones((2, 2))) == pytest.approx([2.5, 2.5], abs=0.5)


def test_standardising_makes_units_irrelevant(iris):
    X, y = iris
    units = np.array([1e-6, 1.0, 1e3, 1e9])
    plain = small_classifier(epochs=5).fit(X, y).predict_proba(X)
    assert np.allclose(small_classifier(epochs=5).fit(X * units, y).predict_proba(X * units), plain)
    raw = small_classifier(epochs=5, standardise=False).fit(X, y)
    assert not np.allclose(raw.predict_proba(X), plain)


@pytest.mark.parametrize("kernel", [*KERNELS, dkm.ArcCosine(bias_variance=0.1)])
def test_kernels_by_name_or_as_themselves(iris, kernel):
    X, y = iris
    classifier = clone(small_classifier(kernel=kernel))
    assert classifier.fit(X, y).score(X, y) > 0.9


@pytest.mark.parametrize("name", KERNELS)
def test_a_name_means_one_kernel_everywhere(iris, name):
    X, y = (values[::10] for values in iris)
    vectors = small_classifier(kernel=name, epochs=1, inducing=4).fit(X, y).model_
    images = dkm.resnet(1, 3, (4,), (1,), kernel=name)
    one, other = (
        next(module for module in machine.modules() if isinstance(module, dkm.Kernel))
        for machine in (vectors, images)
    )
    assert type(one) is type(other)
    assert [n for n, _ in one.named_parameters()] == [n for n, _ in other.named_parameters()]
    fixed = name in (
        "arc-cosine",
        "erf",
        "leaky-relu",
        "normalised-gaussian",
        "normalised-polynomial",
        "sine",
    )
    assert fixed == (not list(one.parameters()))


def test_single_precision_and_no_learned_layer(diabetes):
    X, y = (values[:80] for values in diabetes)
    regressor = small_regressor(precision="float32", depth=0).fit(X, y)
    assert regressor.model_.dtype == torch.float32
    assert regressor.predict(X).dtype == np.float64


def test_verbose_shows_the_training(iris, capsys):
    X, y = iris
    small_classifier(epochs=2, verbose=True).fit(X, y)
    assert "DKMClassifier" in capsys.readouterr().out


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inducing": 0}, "inducing must be above 0, got 0"),
        ({"inducing": 2.5}, "inducing must be an integer, got 2.5"),
        ({"depth": -1}, "depth must be at least 0, got -1"),
        ({"nu": -1.0}, "nu must be at least 0, got -1.0"),
        ({"nu": (1.0, 2.0, 3.0)}, "one for each of 1 layers"),
        ({"kernel": "polynomial"}, "kernel must be a Kernel or one of 'arc-cosine'"),
        ({"epochs": 0}, "epochs must be above 0, got 0"),
        ({"batch_size": "all"}, "batch_size must be an integer, got 'all'"),
        ({"learning_rate": 0}, "learning_rate must be above 0, got 0"),
        ({"precision": "half"}, "precision must be 'auto', 'float32', .* 'bfloat16', got 'half'"),
        ({"device": "abacus"}, "abacus"),
    ],
)
def test_wrong_parameters_are_named_when_fitting(iris, options, message):
    with pytest.raises(ValueError, match=message):
        small_classifier(**options).fit(*iris)


def test_noise_must_be_positive(diabetes):
    with pytest.raises(ValueError, match="noise must be above 0, got -1"):
        small_regressor(noise=-1).fit(*diabetes)


def test_wrong_data_is_refused(iris):
    X, y = iris
    classifier = small_classifier(epochs=2).fit(X, y)
    with pytest.raises(ValueError, match="X has 3 features, but DKMClassifier is expecting 4"):
        classifier.predict(X[:, :3])
    with pytest.raises(ValueError, match="NaN"):
        classifier.predict(np.full((2, 4), np.nan))
    with pytest.raises(ValueError, match="NaN"):
        small_classifier().fit(np.where(X > 7, np.nan, X), y)
    with pytest.raises(ValueError, match="one class only"):
        small_classifier().fit(X[:50], y[:50])
    with pytest.raises(ValueError, match="continuous"):
        small_classifier().fit(X, X[:, 0])

"""The estimators on vectors beside other methods, on tables of numbers.

Regression is on the nine UCI sets that are common in papers on Bayesian deep learning, with their
splits. Classification is on four sets of scikit-learn; sets of UCI can be named as well, and their
targets are cut into classes of equal size. Every method sees the same training points. Where a set
has more than ``--most``, so many are drawn. Printed are means and standard errors over splits.

    python benchmarks/tabular.py regression --splits 3 --most 1000
    python benchmarks/tabular.py classification --splits 3

With ``--validate``, a fifth of the training points is scored in place of the test points: settings
are chosen by that, and the test points are left for the table.
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.model_selection import StratifiedShuffleSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from convdkm import DKMClassifier, DKMRegressor

UCI = (
    "bostonHousing",
    "concrete",
    "energy",
    "kin8nm",
    "naval-propulsion-plant",
    "power-plant",
    "protein-tertiary-structure",
    "wine-quality-red",
    "yacht",
)
BUNDLED = {
    "iris": load_iris,
    "wine": load_wine,
    "breast-cancer": load_breast_cancer,
    "digits": load_digits,
}
MOST_FOR_GP, MOST_FOR_GP_CLASSIFIER = 2000, 600
"""Training points up to which the exact Gaussian processes of scikit-learn are fitted."""
SPARSE_STEPS, SPARSE_BATCH, INDUCING = 1000, 256, 100

Array = NDArray[np.float64]
Scores = tuple[float, float]


class Data(NamedTuple):
    """Training points, and those that are scored."""

    X: Array
    y: NDArray[Any]
    held_out: Array
    targets: NDArray[Any]


class TooManyError(Exception):
    """A method is not meant for so many points."""


# -- data ------------------------------------------------------------------------------------------


def uci(name: str, folder: Path, split: int, classes: int = 0) -> Data:
    """A split of a set of UCI; with ``classes``, targets cut at quantiles of those of training."""
    with np.load(folder / f"{name}.npz") as file:
        X, y, packed = file["X"], file["y"], file["is_test"]
    tested = np.unpackbits(packed, axis=1)[split, : len(y)].astype(bool)
    if classes:
        y = quantile_classes(y, y[~tested], classes)
    return Data(X[~tested], y[~tested], X[tested], y[tested])


def quantile_classes(y: Array, of: Array, classes: int) -> NDArray[np.int64]:
    """Classes of about equal size among the targets ``of``; fewer where targets are equal."""
    edges = np.quantile(of, np.arange(1, classes) / classes)
    return np.searchsorted(np.unique(edges), y, side="left")


def bundled(name: str, split: int) -> Data:
    """A set of scikit-learn; a tenth of it is scored, but no fewer than 30 points."""
    X, y = BUNDLED[name](return_X_y=True)
    drawn = StratifiedShuffleSplit(1, test_size=max(30, len(y) // 10), random_state=split)
    first, second = next(drawn.split(X, y))
    return Data(X[first], y[first], X[second], y[second])


def reduced(data: Data, most: int | None, validate: bool, seed: int) -> Data:
    """At most so many training points; with ``validate``, a fifth of all is scored instead."""
    X, y, held_out, targets = data
    order = np.random.default_rng(seed).permutation(len(y))
    if validate:
        count = len(y) // 5
        held_out, targets = X[order[:count]], y[order[:count]]
        order = order[count:]
    order = order[:most]
    return Data(X[order], y[order], held_out, targets)


# -- regression: mean and deviation of targets of mean 0 and variance 1 ---------------------------

Predicted = tuple[Array, Array | float]


def dkm(data: Data, seed: int) -> Predicted:
    regressor = DKMRegressor(random_state=seed).fit(data.X, data.y)
    return regressor.predict(data.held_out, return_std=True)


def exact_gp(data: Data, seed: int) -> Predicted:
    if len(data.y) > MOST_FOR_GP:
        raise TooManyError(f"more than {MOST_FOR_GP:,} points")
    features = data.X.shape[1]
    kernel = ConstantKernel() * RBF(np.ones(features), (1e-2, 1e4)) + WhiteKernel(0.1, (1e-8, 10))
    gp = GaussianProcessRegressor(kernel, random_state=seed).fit(data.X, data.y)
    return gp.predict(data.held_out, return_std=True)  # the white noise is part of the kernel


def sparse_model(points: torch.Tensor) -> Any:
    """Sparse variational Gaussian process with a length scale for every feature."""
    import gpytorch

    class SparseGP(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            posterior = gpytorch.variational.NaturalVariationalDistribution(len(points))
            strategy = gpytorch.variational.VariationalStrategy(self, points, posterior)
            super().__init__(strategy)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.RBFKernel(ard_num_dims=points.shape[1])
            )

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    return SparseGP().to(points)


def sparse_gp(data: Data, seed: int) -> Predicted:
    """Natural steps for the posterior, and Adam, whose rate decays, for everything else."""
    import gpytorch

    torch.manual_seed(seed)
    X, y = torch.as_tensor(data.X), torch.as_tensor(data.y)
    distinct = X.unique(dim=0)
    points = distinct[torch.randperm(len(distinct))[:INDUCING]].clone()
    likelihood = gpytorch.likelihoods.GaussianLikelihood(
        noise_constraint=gpytorch.constraints.GreaterThan(1e-6)
    ).to(X)
    likelihood.noise = 0.1
    model = sparse_model(points)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, len(y))
    natural = gpytorch.optim.NGD(model.variational_parameters(), len(y), lr=0.1)
    rest = [*model.hyperparameters(), *likelihood.parameters()]
    adam = torch.optim.Adam(rest, lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, SPARSE_STEPS)
    step = 0
    while step < SPARSE_STEPS:
        for batch in torch.randperm(len(y)).split(SPARSE_BATCH):
            if step == SPARSE_STEPS:
                break
            natural.zero_grad()
            adam.zero_grad()
            (-bound(model(X[batch]), y[batch])).backward()
            natural.step()
            adam.step()
            schedule.step()
            step += 1
    model.eval()
    with torch.no_grad():
        prediction = likelihood(model(torch.as_tensor(data.held_out)))
    return prediction.mean.numpy(), prediction.stddev.numpy()


def forest(data: Data, seed: int) -> Predicted:
    """Its deviation is that of the out-of-bag residuals."""
    trees = RandomForestRegressor(200, oob_score=True, random_state=seed).fit(data.X, data.y)
    deviation = np.sqrt(np.mean((trees.oob_prediction_ - data.y) ** 2))
    return trees.predict(data.held_out), float(deviation)


def boosting(data: Data, seed: int) -> Predicted:
    """Its deviation is that of the residuals of a cross-validation with five parts."""
    model = HistGradientBoostingRegressor(random_state=seed)
    found = cross_val_predict(model, data.X, data.y, cv=5)
    deviation = np.sqrt(np.mean((found - data.y) ** 2))
    return model.fit(data.X, data.y).predict(data.held_out), float(deviation)


def ridge(data: Data, seed: int) -> Predicted:
    del seed
    return BayesianRidge().fit(data.X, data.y).predict(data.held_out, return_std=True)


REGRESSION: dict[str, Callable[[Data, int], Predicted]] = {
    "DKMRegressor": dkm,
    "Gaussian process": exact_gp,
    "sparse Gaussian process": sparse_gp,
    "random forest": forest,
    "gradient boosting": boosting,
    "Bayesian ridge": ridge,
}


def regression_scores(method: Callable[[Data, int], Predicted], data: Data, seed: int) -> Scores:
    """RMSE and log-likelihood of the targets that are held out, on their own scale."""
    inputs = StandardScaler().fit(data.X)
    centre, scale = data.y.mean(), data.y.std()
    standard = Data(
        inputs.transform(data.X),
        (data.y - centre) / scale,
        inputs.transform(data.held_out),
        (data.targets - centre) / scale,
    )
    mu, sigma = method(standard, seed)
    squares = (mu - standard.targets) ** 2
    log_density = -0.5 * (np.log(2 * np.pi * np.square(sigma)) + squares / np.square(sigma))
    rmse = scale * np.sqrt(squares.mean())
    return float(rmse), float(log_density.mean() - np.log(scale))


# -- classification --------------------------------------------------------------------------------


def gp_classifier(seed: int) -> ClassifierMixin:
    return GaussianProcessClassifier(ConstantKernel() * RBF(3.0), random_state=seed)


CLASSIFICATION: dict[str, Callable[[int], ClassifierMixin]] = {
    "DKMClassifier": lambda seed: DKMClassifier(random_state=seed),
    "Gaussian process": gp_classifier,
    "random forest": lambda seed: RandomForestClassifier(200, random_state=seed),
    "gradient boosting": lambda seed: HistGradientBoostingClassifier(random_state=seed),
    "logistic regression": lambda seed: LogisticRegression(max_iter=1000, random_state=seed),
}
SMALLEST_PROBABILITY = 1e-4
"""That of a class counts as; forests give zeros."""


def classification_scores(make: Callable[[int], ClassifierMixin], data: Data, seed: int) -> Scores:
    """Accuracy and log-likelihood of the labels that are held out."""
    if make is gp_classifier and len(data.y) > MOST_FOR_GP_CLASSIFIER:
        raise TooManyError(f"more than {MOST_FOR_GP_CLASSIFIER} points")
    model = make_pipeline(StandardScaler(), make(seed)).fit(data.X, data.y)
    probabilities = model.predict_proba(data.held_out)
    where = np.searchsorted(model.classes_, data.targets)
    own = probabilities[np.arange(len(where)), where]
    log_likelihood = np.log(np.maximum(own, SMALLEST_PROBABILITY)).mean()
    return float((probabilities.argmax(1) == where).mean()), float(log_likelihood)


# -- tables ----------------------------------------------------------------------------------------


def in_words(values: Sequence[float], digits: int) -> str:
    """Mean and standard error."""
    shown = f"{mean(values):.{digits}f}"
    if len(values) == 1:
        return shown
    return f"{shown} ± {stdev(values) / len(values) ** 0.5:.{digits}f}"


def digits_for(value: float) -> int:
    """Decimal places that leave three figures of a value."""
    return int(np.clip(2 - np.floor(np.log10(max(abs(value), 1e-9))), 0, 6))


def rows(
    methods: dict[str, Callable[[Data, int], Scores]], splits: Sequence[Data], seeds: int
) -> Iterator[str]:
    """A row of the table for every method."""
    for name, scores in methods.items():
        found: list[Scores] = []
        began = time.process_time()
        try:
            for data in splits:
                found += [scores(data, seed) for seed in range(seeds)]
        except TooManyError as reason:
            yield f"| {name} | left out: {reason} | | |"
            continue
        seconds = (time.process_time() - began) / len(found)
        first, second = zip(*found, strict=True)
        shown = in_words(first, digits_for(mean(first))), in_words(second, 3)
        yield f"| {name} | {' | '.join(shown)} | {seconds:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = os.environ.get("CONVDKM_DATA", Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("task", choices=("regression", "classification"))
    parser.add_argument("--sets", nargs="+", help="by default all; UCI sets are cut into classes")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1, help="of methods, for every split")
    parser.add_argument("--most", type=int, help="training points of a split; by default all")
    parser.add_argument("--classes", type=int, default=3, help="that targets are cut into")
    parser.add_argument("--methods", nargs="+", help="how their names begin; by default all")
    parser.add_argument("--validate", action="store_true", help="score training points")
    parser.add_argument("--data-dir", default=str(folder), help="its parts/uci has the sets")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # optimisers of scikit-learn at the bounds of a length scale
    torch.set_default_dtype(torch.float64)
    regression = arguments.task == "regression"
    methods: dict[str, Callable[[Data, int], Scores]]
    if regression:
        methods = {name: partial(regression_scores, each) for name, each in REGRESSION.items()}
    else:
        methods = {
            name: partial(classification_scores, each) for name, each in CLASSIFICATION.items()
        }
    if arguments.methods:
        chosen = tuple(arguments.methods)
        methods = {name: each for name, each in methods.items() if name.startswith(chosen)}
    parts = Path(arguments.data_dir) / "parts" / "uci"
    for name in arguments.sets or (UCI if regression else BUNDLED):
        splits = []
        for split in range(arguments.splits):
            if name in BUNDLED:
                whole = bundled(name, split)
            else:
                whole = uci(name, parts, split, 0 if regression else arguments.classes)
            splits.append(reduced(whole, arguments.most, arguments.validate, split))
        count, features = splits[0].X.shape
        print(f"\n{name}: {count:,} training points, {features} features\n")
        print(f"| | {'RMSE' if regression else 'accuracy'} | log-likelihood | seconds |")
        print("|---|---|---|---|", flush=True)
        for row in rows(methods, splits, arguments.seeds):
            print(row, flush=True)


if __name__ == "__main__":
    main()

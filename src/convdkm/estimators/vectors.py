"""Estimators on vectors: fully connected deep kernel machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from convdkm.architectures import fully_connected
from convdkm.choices import LikelihoodName
from convdkm.config import Recipe
from convdkm.estimators.base import MachineClassifier, MachineEstimator, distinct, epochs_of
from convdkm.kernels import KERNELS, Kernel
from convdkm.options import Nu, Options, PositiveInt
from convdkm.prediction import RealPrediction
from convdkm.training.batches import Batches
from convdkm.training.build import dtype_of
from convdkm.training.world import find_device

LEAST_EPOCHS = 10
"""Passes over the samples by default, or more, so that there are ``least_steps``."""
INITIALISING_SAMPLES = 512


class VectorOptions(Options):
    """What a machine on vectors is made of, as ``fit`` checks it."""

    inducing: PositiveInt
    depth: Annotated[int, Field(ge=0)]
    nu: Nu
    learn_scales: bool
    noise: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


def default_nu(samples: int) -> float:
    """The regressor's ν: the fewer the samples, the sooner Gram matrices that are free overfit."""
    return max(10.0, 15 * (1000 / samples) ** 1.5)


class _OnVectors(MachineEstimator):
    """Base class of the estimators on vectors.

    Attributes:
        least_steps: of training by default.
        fixed: what their recipes have in common beside the parameters.
    """

    least_steps: ClassVar[int] = 150
    fixed: ClassVar[dict[str, Any]] = {
        "whitening": "none",
        "crop": 0,
        "flip": False,
        "schedule": "one-cycle",
        "calibrate": 2048,
    }
    kernel: str | Kernel
    learn_scales: bool
    standardise: bool
    epochs: int | None

    def _fit_vectors(
        self,
        X: NDArray[np.float64],
        targets: Tensor,
        num_outputs: int,
        likelihood: LikelihoodName,
        **chosen: Any,
    ) -> None:
        """Fit a machine by the parameters, and by those in their place that were ``chosen``."""
        parameters = self.get_params(deep=False) | chosen
        given = {name: parameters.get(name) for name in VectorOptions.model_fields}
        options = VectorOptions.checked(given)
        kernel = self.kernel
        if not isinstance(kernel, Kernel):
            kernel = KERNELS.build(str(kernel), {})
        self.scaler_ = StandardScaler().fit(X) if self.standardise else None
        inputs = self._prepared(X)
        first = distinct(inputs.numpy())
        inducing = min(options.inducing, len(first))
        recipe = self._recipe(len(inputs))
        device, dtype = find_device(recipe.device), dtype_of(recipe)
        first = first.to(device)
        with torch.random.fork_rng(devices=[]):  # machines draw their first weights when built
            torch.manual_seed(recipe.seed)
            model = fully_connected(
                inputs.shape[1],
                num_outputs,
                inducing=inducing,
                depth=options.depth,
                nu=options.nu,
                kernel=kernel,
                learn_scales=options.learn_scales,
                likelihood=likelihood,
                noise=options.noise,
                dtype=dtype,
            ).to(device)
        batches = Batches.of(recipe, inputs.to(device, dtype), targets.to(device))
        samples, most = batches.images[first], max(INITIALISING_SAMPLES, inducing)
        model.initialise(samples, batches.targets[first], seed=recipe.seed, max_images=most)
        self._train(model, batches, recipe)

    def _recipe(self, count: int) -> Recipe:
        """The parameters as a recipe; no batch is larger than there are samples."""
        names = ("epochs", "batch_size", "learning_rate", "precision", "device")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        recipe = Recipe.checked({**given, **self.fixed, "seed": self._drawn_seed()})
        batch_size, epochs = min(recipe.batch_size, count), recipe.epochs
        if self.epochs is None:
            epochs = max(LEAST_EPOCHS, epochs_of(self.least_steps, count, batch_size))
        return recipe.model_copy(update={"batch_size": batch_size, "epochs": epochs})

    def _inputs(self, X: Any) -> Tensor:
        return self._prepared(self._validated(X, dtype=np.float64, reset=False))

    def _prepared(self, X: NDArray[np.float64]) -> Tensor:
        """Standardised, with a constant feature, by which functions need not vanish at zero."""
        scaled = X if self.scaler_ is None else self.scaler_.transform(X)
        return torch.as_tensor(np.hstack([scaled, np.ones((len(X), 1))]))


class DKMClassifier(MachineClassifier, _OnVectors):
    """Classification of vectors by a deep kernel machine.

    A fully connected machine (:func:`convdkm.fully_connected`) trained by Adam with one cycle of
    the learning rate.

    Args:
        inducing: inducing points of every layer; no more than there are distinct samples.
        depth: learned Gram matrices; 0 for a sparse Gaussian process.
        nu: how strongly every layer is held to its kernel, from 0 to infinity, where nothing is
            learned but the top layer; one number, or one for each layer.
        kernel: a name (:data:`convdkm.kernels.KERNELS`) or a :class:`convdkm.Kernel`;
            ``"arc-cosine-learned"`` learns a variance of weights and one of biases, and
            ``"squared-exponential"`` its length scale and its variance.
        learn_scales: learn a scale of every feature, so that some may count more than others.
        standardise: bring every feature to mean 0 and variance 1 first.
        epochs: passes over the samples; by default 10, or as many as make 150 steps.
        batch_size: samples a step.
        learning_rate: Adam's, at its peak.
        precision: of the data path, ``"float32"``, ``"float64"``, ``"bfloat16"`` (of products in
            training alone), or ``"auto"`` for that where the processor computes in it.
        device: ``"cpu"``, ``"cuda"``, …; ``"auto"`` takes what there is.
        random_state: of everything that is random: an integer makes fits repeatable.
        verbose: whether to show the training.

    Attributes:
        classes_: the labels.
        model_: the machine, a :class:`convdkm.DeepKernelMachine`.
        epochs_: passes over the samples that it was trained for.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = DKMClassifier(inducing=20, epochs=40, random_state=0).fit(X, y)
    >>> bool(classifier.score(X, y) > 0.9)
    True
    """

    def __init__(
        self,
        inducing: int = 100,
        depth: int = 2,
        *,
        nu: float | Sequence[float] = 10.0,
        kernel: str | Kernel = "arc-cosine-learned",
        learn_scales: bool = False,
        standardise: bool = True,
        epochs: int | None = None,
        batch_size: int = 256,
        learning_rate: float = 0.1,
        precision: str = "float64",
        device: str = "auto",
        random_state: Any = None,
        verbose: int | bool = False,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: Any) -> DKMClassifier:
        """Train a new machine on vectors ``(N, features)`` and their labels ``(N,)``."""
        X, y = self._validated(X, y, dtype=np.float64)
        labels = self._encoded(y)
        self._fit_vectors(X, labels, len(self.classes_), "categorical")
        return self


class DKMRegressor(RegressorMixin, MultiOutputMixin, _OnVectors):
    r"""Regression on vectors by a deep kernel machine, with the uncertainty of its predictions.

    A fully connected machine (:func:`convdkm.fully_connected`) with Gaussian noise, trained by
    Adam and natural steps of the top layer, with one cycle of the learning rate. Targets are
    brought to mean 0 and variance 1 inside, and predictions back; several targets have their noise
    in common on that scale.

    Args:
        nu: as in :class:`DKMClassifier`; by default :math:`15\,(1000/N)^{3/2}` for N samples, but
            10 at the least: with few samples, Gram matrices that are free to move overfit.
        noise: variance of the noise to start with, as a share of the targets' variance; learned.
        epochs: passes over the samples; by default 10, or as many as make 300 steps.

    The other parameters are those of :class:`DKMClassifier`.

    Attributes:
        model_: the machine, a :class:`convdkm.DeepKernelMachine`, on the scale of mean 0 and
            variance 1.
        epochs_: passes over the samples that it was trained for.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> regressor = DKMRegressor(inducing=20, epochs=20, random_state=0).fit(X[:200], y[:200])
    >>> mean, std = regressor.predict(X[200:], return_std=True)
    """

    least_steps = 300
    # Adam would take many more steps to the optimum of the top layer, and to a noise that is small.
    fixed: ClassVar = _OnVectors.fixed | {"head_natural_rate": 0.3, "noise_rate": 3.0}

    def __init__(
        self,
        inducing: int = 100,
        depth: int = 2,
        *,
        nu: float | Sequence[float] | None = None,
        kernel: str | Kernel = "arc-cosine-learned",
        learn_scales: bool = True,
        noise: float = 0.1,
        standardise: bool = True,
        epochs: int | None = None,
        batch_size: int = 256,
        learning_rate: float = 0.05,
        precision: str = "float64",
        device: str = "auto",
        random_state: Any = None,
        verbose: int | bool = False,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: Any) -> DKMRegressor:
        """Train a new machine on vectors ``(N, features)`` and targets ``(N,)`` or ``(N, D)``."""
        X, y = self._validated(X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self._one_target = y.ndim == 1
        columns = y.reshape(len(y), -1).astype(np.float64)
        self.target_scaler_ = StandardScaler().fit(columns)
        targets = torch.as_tensor(self.target_scaler_.transform(columns))
        nu = default_nu(len(X)) if self.nu is None else self.nu
        self._fit_vectors(X, targets, targets.shape[1], "gaussian", nu=nu)
        return self

    def predictive(self, X: Any) -> RealPrediction:
        """The whole predictive distribution of the targets, on their own scale."""
        prediction = self._predict(X)
        assert isinstance(prediction, RealPrediction)
        scale = torch.as_tensor(self.target_scaler_.scale_).to(prediction.mean)
        centre = torch.as_tensor(self.target_scaler_.mean_).to(prediction.mean)
        return RealPrediction(
            prediction.mean * scale + centre,
            prediction.variance * scale.square(),
            prediction.target_variance * scale.square(),
        )

    def predict(
        self, X: Any, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean of every sample's target, and with ``return_std`` also its standard deviation.

        The deviation is that of a target, noise included.
        """
        prediction = self.predictive(X)
        mean = self._shaped(prediction.mean)
        if not return_std:
            return mean
        return mean, self._shaped(prediction.target_variance.sqrt())

    def _shaped(self, values: Tensor) -> NDArray[np.float64]:
        array = np.asarray(values.double().cpu())
        return array[:, 0] if self._one_target else array

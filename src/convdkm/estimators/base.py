"""What the estimators share: training, prediction, and pickles that open on any machine."""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from convdkm.config import Recipe
from convdkm.errors import InvalidInputError
from convdkm.model import DeepKernelMachine
from convdkm.ops import window
from convdkm.prediction import ClassPrediction, Prediction
from convdkm.training.batches import Batches
from convdkm.training.build import tuned
from convdkm.training.loop import Trainer
from convdkm.training.sinks import Level
from convdkm.views import Views

PREDICTED_AT_ONCE = 1000
FORMAT = "_parameters_version"
"""In a pickle: which version of the parameters it holds; those of version 1 do not say so."""
RENAMED = {
    "arc-cosine": "arc-cosine-learned",
    "normalised-gaussian": "normalised-gaussian-learned",
}
"""What names of kernels meant in version 1 that mean others now."""
sys.modules.setdefault("convdkm.layers.window", window)  # its name in pickles of version 1


def distinct(rows: NDArray[Any]) -> Tensor:
    """Where each row is first found: inducing points that are equal make K_ii singular."""
    return torch.as_tensor(np.sort(np.unique(rows, axis=0, return_index=True)[1]))


def epochs_of(steps: int, count: int, batch_size: int) -> int:
    """Passes over ``count`` samples that make that many steps, or more."""
    return -(-steps // -(-count // batch_size))


def warn(text: str, level: Level) -> None:
    """Pass a warning of training on to the user of an estimator."""
    if level == "warning":
        warnings.warn(text, stacklevel=6)  # where fit was called


class MachineEstimator(BaseEstimator):
    """Base class of the estimators: a machine ``model_`` that is built, initialised and trained."""

    random_state: Any
    verbose: int | bool
    model_: DeepKernelMachine

    def _keep(self, parameters: dict[str, Any]) -> None:
        """Keep what a constructor was called with, its ``locals()``, as attributes."""
        for name in self._get_param_names():
            setattr(self, name, parameters[name])

    def _train(self, model: DeepKernelMachine, batches: Batches, recipe: Recipe) -> None:
        """Train a machine that is initialised."""
        recipe = tuned(model, recipe, warn)
        recipe = recipe.model_copy(update={"evaluate_every": 0})  # there is no test set
        sinks = []
        if self.verbose:
            from convdkm.training.view import TerminalSink

            sinks.append(TerminalSink())
        trainer = Trainer(model, batches, recipe, sinks=sinks)
        with trainer.sinks:
            trainer.run(trainer.info(type(self).__name__))
        self.model_ = model.eval().requires_grad_(False)
        self.epochs_ = recipe.epochs

    def _validated(self, *arrays: Any, **options: Any) -> Any:
        """Arrays as scikit-learn checks them; their features are remembered or compared."""
        try:
            from sklearn.utils.validation import validate_data
        except ImportError:  # a method before version 1.6
            return self._validate_data(*arrays, **options)
        return validate_data(self, *arrays, **options)

    def _drawn_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _inputs(self, X: Any) -> Tensor:
        """Samples to predict, checked, as the machine takes them."""
        raise NotImplementedError(f"{type(self).__name__} must define _inputs(X)")

    def _predict(self, X: Any) -> Prediction:
        check_is_fitted(self)
        inputs = self._inputs(X)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # for machines that predict by samples
            return self.model_.predict(inputs, batch_size=PREDICTED_AT_ONCE, views=self._views())

    def _views(self) -> Views:
        """What the machine sees of the samples."""
        return Views()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = {**super().__getstate__(), FORMAT: 2}
        if "model_" in state and self.model_.device.type != "cpu":
            state = {**state, "model_": copy.deepcopy(self.model_).cpu()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        parameters = inspect.signature(type(self)).parameters  # more of them than it may have
        state = {name: each.default for name, each in parameters.items()} | state
        if state.pop(FORMAT, 1) == 1 and isinstance(state["kernel"], str):
            state["kernel"] = RENAMED.get(state["kernel"], state["kernel"])
        super().__setstate__(state)


class MachineClassifier(ClassifierMixin, MachineEstimator):
    """Base class of the classifiers."""

    classes_: NDArray[Any]

    def predictive(self, X: Any) -> ClassPrediction:
        """The whole predictive distribution: ``log_probs``, ``entropy``, ``mutual_information``.

        Its columns, and its integer ``labels``, are in the order of ``classes_``.
        """
        prediction = self._predict(X)
        assert isinstance(prediction, ClassPrediction)
        return prediction

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every sample."""
        best = self.predict_log_proba(X).argmax(1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probability of every class, in the order of ``classes_``."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Logarithm of the probability of every class, in the order of ``classes_``."""
        log_probs = self.predictive(X).log_probs.double()
        # Those of float32 sum to one in its precision only.
        return np.asarray(torch.log_softmax(log_probs, 1).cpu())

    def _encoded(self, y: Any) -> Tensor:
        """Labels as numbers from 0, with ``classes_`` to go back."""
        check_classification_targets(y)
        self.classes_, numbers = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInputError(
                f"{type(self).__name__} needs samples of two classes or more, but y holds one"
                f" class only: {self.classes_[0]!r}"
            )
        return torch.as_tensor(numbers)

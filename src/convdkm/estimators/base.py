"""What the estimators share: training, prediction, and pickles that open on any machine."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from convdkm.config import TrainingConfig
from convdkm.errors import InvalidInputError
from convdkm.estimators.options import as_dtype, as_integer, as_positive
from convdkm.model import DeepKernelMachine
from convdkm.prediction import ClassPrediction, Prediction
from convdkm.training.batches import Batches
from convdkm.training.loop import Trainer
from convdkm.training.world import find_device

INITIALISING_SAMPLES = 512
PREDICTED_AT_ONCE = 1000


class MachineEstimator(BaseEstimator):
    """Base class of the estimators: a machine ``model_`` that is built, initialised and trained."""

    LEAST_STEPS: ClassVar[int]
    LEAST_EPOCHS: ClassVar[int]

    epochs: int | None
    batch_size: int
    learning_rate: float
    precision: str
    device: str
    random_state: Any
    verbose: int | bool
    model_: DeepKernelMachine

    def _train(
        self,
        build: Callable[[torch.dtype], DeepKernelMachine],
        inputs: Tensor,
        targets: Tensor,
        *,
        distinct: Tensor | None = None,
        crop: int = 0,
        flip: bool = False,
    ) -> None:
        """Build a machine and train it.

        Args:
            build: makes the machine, given the precision of its data path.
            inputs: vectors, or whitened images.
            targets: labels or real targets.
            distinct: samples that it is initialised from; all by default.
            crop, flip: see :class:`Batches`.
        """
        device, dtype = find_device(self.device), as_dtype(self.precision)
        config = self._recipe(len(inputs))
        inputs, targets = inputs.to(device, dtype), targets.to(device)
        batches = Batches(
            inputs,
            targets,
            config.batch_size,
            crop=crop,
            flip=flip,
            seed=config.seed,
        )
        with torch.random.fork_rng(devices=[]):  # machines draw their first weights when built
            torch.manual_seed(config.seed)
            model = build(dtype).to(device)
        start = slice(None) if distinct is None else distinct.to(device)
        most = max(INITIALISING_SAMPLES, model.input.num_inducing)
        model.initialise(batches.images[start], targets[start], seed=config.seed, max_images=most)
        sinks = []
        if self.verbose:
            from convdkm.training.view import TerminalSink

            sinks.append(TerminalSink())
        trainer = Trainer(model, batches, config, sinks=sinks)
        with trainer.sinks:
            trainer.run(trainer.info(type(self).__name__))
        self.model_ = model.eval().requires_grad_(False)
        self.epochs_ = config.epochs

    def _recipe(self, count: int) -> TrainingConfig:
        batch_size = min(as_integer("batch_size", self.batch_size), count)
        if self.epochs is None:
            steps = -(-count // batch_size)
            epochs = max(self.LEAST_EPOCHS, -(-self.LEAST_STEPS // steps))
        else:
            epochs = as_integer("epochs", self.epochs)
        return TrainingConfig(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=as_positive("learning_rate", self.learning_rate),
            schedule="one-cycle",
            calibrate=2048,
            evaluate_every=0,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )

    def _inputs(self, X: Any) -> Tensor:
        """Samples to predict, checked, as the machine takes them."""
        raise NotImplementedError(f"{type(self).__name__} must define _inputs(X)")

    def _predict(self, X: Any) -> Prediction:
        check_is_fitted(self)
        inputs = self._inputs(X)
        return self.model_.predict(inputs, batch_size=PREDICTED_AT_ONCE)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "model_" in state and self.model_.device.type != "cpu":
            state = {**state, "model_": copy.deepcopy(self.model_).cpu()}
        return state


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

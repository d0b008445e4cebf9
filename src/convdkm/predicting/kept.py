"""What cannot be folded, kept as it is: it predicts in Python, but cannot leave it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from convdkm.head import Marginals
from convdkm.predicting.base import Blocks
from convdkm.predicting.ends import Outcome, Start
from convdkm.predicting.steps import Step
from convdkm.prediction import Prediction

if TYPE_CHECKING:
    from convdkm.layers.base import Plan
    from convdkm.layers.input import Input
    from convdkm.likelihoods import Likelihood


class KeptPlan(Step):
    """A plan as it is.

    Args:
        plan: of a layer in evaluation mode that nobody else changes.
        obstacle: why it could not be folded.
    """

    def __init__(self, plan: Plan, obstacle: str) -> None:
        super().__init__()
        self.plan, self.obstacle = plan, obstacle

    def forward(self, it: Tensor, tt: Tensor) -> Blocks:
        return self.plan.data(it, tt)


class KeptInput(Start):
    """An input as it is."""

    def __init__(self, source: Input, obstacle: str) -> None:
        super().__init__()
        self.source, self.obstacle = source, obstacle

    def forward(self, images: Tensor) -> Blocks:
        return self.source.data(images)


class KeptLikelihood(Outcome):
    """A likelihood as it is."""

    names = ("mean", "variance")

    def __init__(self, likelihood: Likelihood, obstacle: str) -> None:
        super().__init__()
        self.likelihood, self.obstacle = likelihood, obstacle

    def forward(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        return mean, variance

    def prediction(self, *tensors: Tensor) -> Prediction:
        return self.likelihood.predict(Marginals(*tensors))

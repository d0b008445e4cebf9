"""Gradient descent that the baselines share: the machine's recipe, within a time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from torch import Tensor

from convdkm.checks import check_positive_number
from convdkm.config import Recipe
from convdkm.data.augment import resized
from convdkm.errors import NumericalError
from convdkm.lab.baselines.base import Tell
from convdkm.training.batches import Batches
from convdkm.training.optimiser import Descent
from convdkm.training.schedule import image_scale, learning_rate


class Budget:
    """A time limit of so many minutes from now on; None for no limit."""

    def __init__(self, minutes: float | None) -> None:
        if minutes is not None:
            check_positive_number(minutes=minutes)
        self._limit = math.inf if minutes is None else 60 * minutes
        self._start = time.perf_counter()

    @property
    def share(self) -> float:
        """The share of the time that has passed: 0 without a limit, 1 or more when it is over."""
        return (time.perf_counter() - self._start) / self._limit

    @property
    def seconds_left(self) -> float:
        """The seconds left, not less than zero; infinite without a limit."""
        return max(0.0, self._limit - (time.perf_counter() - self._start))

    def over(self) -> bool:
        """Whether the time is over."""
        return self.share >= 1


def descend(
    optimiser: Descent,
    batches: Batches,
    recipe: Recipe,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    budget: Budget,
    tell: Tell,
    after: Callable[[], None] = lambda: None,
) -> tuple[list[float], int]:
    r"""Minimise a loss by the recipe's optimiser, with its schedule.

    The learning rate follows the schedule at :math:`\max(t/T, b)`, where t of T steps are done and
    a share b of the budget is gone: where time is short the rate still comes down before the end.
    When the budget is over it stops, after one step at least.

    Args:
        recipe: epochs, schedule and sizes of images; the rest belongs to the batches.
        loss: of a batch, as a mean over its images.
        after: called after every step, for instance to project parameters.

    Returns:
        The loss of each epoch, and the number of steps.

    Raises:
        NumericalError: the loss is NaN or infinite; that step has changed nothing.
    """
    total, step = recipe.epochs * batches.steps, 0
    curve: list[float] = []
    for epoch in range(recipe.epochs):
        summed, seen = 0.0, 0
        for inputs, targets in batches.epoch(epoch):
            place = min(max(step, int(budget.share * total)), total - 1)
            value = loss(resized(inputs, image_scale(recipe, place, total)), targets)
            if not math.isfinite(value.item()):
                raise NumericalError(
                    f"the loss is {value.item()} at step {step + 1} of {total}; try a smaller"
                    f" learning_rate than {recipe.learning_rate:g}"
                )
            optimiser.set_rate(learning_rate(recipe, place, total))
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            step += 1
            optimiser.look_ahead(step, last=step == total)
            after()
            summed, seen = summed + value.item() * len(targets), seen + len(targets)
            if budget.over():
                break
        curve.append(summed / seen)
        tell(f"epoch {epoch + 1} of {recipe.epochs}: loss {curve[-1]:.4f}")
        if budget.over():
            tell(f"stopped after step {step} of {total}: the time is over")
            break
    return curve, step

"""How long a run still takes."""

from __future__ import annotations

import math
from collections.abc import Callable

from convdkm.training.sinks import RunInfo

Clock = Callable[[], float]


class TimeLeft:
    """Predicts how long a run still takes, from what this process has seen of it.

    The time of a step is a weighted mean in which a step loses its weight over about a minute, or
    over twenty steps where they are slow. The time between the last step of an epoch and the first
    of the next, such as evaluation, is averaged over the epochs.
    """

    MEMORY_SECONDS = 60.0
    MEMORY_STEPS = 20

    def __init__(self, info: RunInfo, clock: Clock) -> None:
        self._clock = clock
        self._steps_per_epoch, self._epochs = info.steps_per_epoch, info.epochs
        self._step, self._finished_epochs = info.first_step, info.first_step // info.steps_per_epoch
        self._epoch = self._finished_epochs + 1
        self._time: float | None = None
        self._weighted_seconds = self._weighted_steps = 0.0
        self._pauses, self._paused_seconds = 0, 0.0

    @property
    def seconds_per_step(self) -> float | None:
        """The weighted mean; None before the second step of this process."""
        return self._weighted_seconds / self._weighted_steps if self._weighted_steps else None

    def step(self, step: int, epoch: int) -> None:
        """Take note of a step that has just ended."""
        now, count = self._clock(), step - self._step
        if self._time is not None and count > 0:
            seconds = now - self._time
            usual = self.seconds_per_step
            if epoch == self._epoch or self._steps_per_epoch == 1:
                memory = max(math.exp(-seconds / self.MEMORY_SECONDS), 1 - 1 / self.MEMORY_STEPS)
                self._weighted_seconds = memory * self._weighted_seconds + seconds
                self._weighted_steps = memory * self._weighted_steps + count
            elif usual is not None:
                self._paused_seconds += max(seconds - count * usual, 0.0)
        self._step, self._epoch, self._time = step, epoch, now

    def epoch(self, epoch: int) -> None:
        """Take note of an epoch whose record is complete."""
        now = self._clock()
        if self._time is not None:
            self._pauses += 1
            self._paused_seconds += now - self._time
            self._time = now
        self._finished_epochs = epoch

    def of_epoch(self) -> float | None:
        """Seconds until the last step of this epoch."""
        return self._predict(self._epoch * self._steps_per_epoch - self._step, 0)

    def of_run(self) -> float | None:
        """Seconds until the end of the run."""
        steps = self._epochs * self._steps_per_epoch - self._step
        return self._predict(steps, self._epochs - self._finished_epochs)

    def _predict(self, steps: int, epochs: int) -> float | None:
        usual = self.seconds_per_step
        if usual is None or self._time is None:
            return None
        pause = self._paused_seconds / self._pauses if self._pauses else 0.0
        return max(steps * usual + epochs * pause - (self._clock() - self._time), 0.0)

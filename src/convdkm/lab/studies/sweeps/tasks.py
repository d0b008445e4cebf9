"""What is done in a process of its own: a run from wherever it is to its end, and a short trial."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convdkm.lab.studies.launchers.base import asked_to_stop
from convdkm.lab.studies.sweeps.folder import read_metrics

TRIAL_SECONDS, TRIAL_STEPS = 3.0, 6
TRIAL_IMAGES = 256


@dataclass(frozen=True)
class RunTask:
    """A run, made or gone on with.

    Attributes:
        name: of the run.
        folder: of the run.
        config: all of its settings.
        log: the file that takes what it prints.
    """

    name: str
    folder: str
    config: dict[str, Any]
    log: str | None = None

    def __call__(self) -> dict[str, float] | None:
        """The final figures; None if it was asked to stop before."""
        from convdkm.config import RunConfig
        from convdkm.training.checkpoint import CheckpointStore
        from convdkm.training.fit import fit, resume
        from convdkm.training.folder import CHECKPOINTS

        folder = Path(self.folder)
        done = read_metrics(folder)
        if done is not None:
            return done
        config = RunConfig.of(self.config, self.name)
        _keep_memory(config.training.device)
        place: dict[str, Any] = {"data_dir": config.data.data_dir, "device": config.training.device}
        if CheckpointStore(folder / CHECKPOINTS).names():
            run = resume(folder, stop=asked_to_stop, **place)
        else:
            run = fit(config, config.data.dataset, folder=folder, stop=asked_to_stop)
        return run.metrics or None


@dataclass(frozen=True)
class Pace:
    """What a run takes, measured: seconds to begin, for a step, and to predict an image."""

    begin: float
    step: float
    image: float
    steps_per_epoch: int
    num_data: int


@dataclass(frozen=True)
class PaceTask:
    """The first steps of a run, in memory alone, timed."""

    name: str
    config: dict[str, Any]
    log: str | None = None

    def __call__(self) -> Pace | None:
        """The times; None if it was asked to stop before."""
        import torch

        from convdkm.config import RunConfig
        from convdkm.training.fit import fit
        from convdkm.training.sinks import RunInfo, Sink, StepRecord

        class Clock(Sink):
            """Notes when steps are done, and says when there are enough."""

            info: RunInfo

            def __init__(self) -> None:
                self.times: list[float] = []

            def start(self, info: RunInfo) -> None:
                self.info = info

            def step(self, record: StepRecord) -> None:
                self.times.append(time.monotonic())

            def enough(self) -> bool:
                seen = self.times[-1] - self.times[0]
                many = len(self.times) >= TRIAL_STEPS
                return asked_to_stop() or many or (len(self.times) > 1 and seen > TRIAL_SECONDS)

        config = RunConfig.of(self.config, self.name)
        _keep_memory(config.training.device)
        clock = Clock()
        start = time.monotonic()
        run = fit(config, config.data.dataset, sinks=[clock], stop=clock.enough)
        if asked_to_stop():
            return None
        times = clock.times
        step = (times[-1] - times[0]) / max(1, len(times) - 1)
        if len(times) == 1:
            step = times[0] - start
        images = torch.rand(TRIAL_IMAGES, *run.image_shape)
        before = time.monotonic()
        run.predict(images)
        image = (time.monotonic() - before) / TRIAL_IMAGES
        begin = max(0.0, times[0] - start - step)
        return Pace(begin, step, image, clock.info.steps_per_epoch, clock.info.num_data)


def _keep_memory(device: str) -> None:
    """On the CPU, every step takes the memory that the one before gave up."""
    from convdkm.runtime.allocator import keep_freed_memory
    from convdkm.training.world import find_device

    if find_device(device).type == "cpu":
        keep_freed_memory()

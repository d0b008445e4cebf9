"""How long runs will take: from finished runs of the same size, else from a short trial of one."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from convdkm.config import RunConfig
from convdkm.data.registry import is_known, known_set
from convdkm.lab.studies.folder import TRIAL_LOG
from convdkm.lab.studies.launchers.base import Launcher, Stop, asked_to_stop
from convdkm.lab.studies.study import Progress, Say
from convdkm.lab.studies.sweeps.planning import PlannedRun, SweepFolder

TRIAL_SECONDS, TRIAL_STEPS = 3.0, 6
TRIAL_IMAGES = 256


def estimate(
    progress: Progress[PlannedRun],
    folder: SweepFolder,
    launcher: Launcher,
    *,
    where: Mapping[str, Any],
    stop: Stop,
    warn: Say,
) -> None:
    """Note in ``progress`` the time of the runs that are left.

    The launcher makes trials of those whose size no finished run has, with the options of the place
    ``where``; ``warn`` is told of a trial that failed.
    """
    known: dict[tuple[Any, ...], list[float]] = {}
    for run in progress.finished:
        metrics = folder.status(run).metrics
        if "seconds" in metrics:
            known.setdefault(run.cost, []).append(metrics["seconds"])
    untried = {run.cost: run for run in progress.left.values() if run.cost not in known}
    costs = {run.title: cost for cost, run in untried.items()}
    log = str(folder.path / TRIAL_LOG) if folder.path.is_dir() else os.devnull
    tasks = [
        PaceTask(run.title, run.config.updated({**where, "evaluate_every": 0}), log)
        for run in untried.values()
    ]
    paces: dict[tuple[Any, ...], Pace] = {}
    for outcome in launcher.run(tasks, stop) if tasks else ():
        if outcome.status == "done":
            paces[costs[outcome.name]] = outcome.value
        elif outcome.error:
            warn(f"a trial failed: {outcome.name}: {outcome.error}")
    for place, run in progress.left.items():
        if run.cost in known:
            progress.seconds[place] = fmean(known[run.cost])
        elif run.cost in paces:
            progress.seconds[place] = foreseen(run, paces[run.cost])


def foreseen(run: PlannedRun, pace: Pace) -> float:
    """Seconds that a run takes: to begin, for its steps, and for its evaluations."""
    training, data = run.config.training, run.config.data
    tested = known_set(run.dataset).test_size if is_known(run.dataset) else pace.num_data // 5
    tested = min(tested, data.test_size or tested)
    evaluations = training.epochs // training.evaluate_every if training.evaluate_every else 1
    images = max(1, evaluations) * (tested + training.calibrate) + tested + pace.num_data
    steps = training.epochs * pace.steps_per_epoch
    return pace.begin + steps * pace.step + images * pace.image


@dataclass(frozen=True)
class Pace:
    """Measured seconds of a run: to begin, for a step, and to predict an image."""

    begin: float
    step: float
    image: float
    steps_per_epoch: int
    num_data: int


@dataclass(frozen=True)
class PaceTask:
    """The first steps of a run, in memory alone, timed."""

    name: str
    config: RunConfig
    log: str | None = None

    def __call__(self) -> Pace | None:
        """The times; None if it was asked to stop before."""
        import torch

        from convdkm.training.fit import fit
        from convdkm.training.sinks import RunInfo, Sink, StepRecord

        times: list[float] = []

        class Clock(Sink):
            """Notes when steps are done."""

            info: RunInfo

            def start(self, info: RunInfo) -> None:
                self.info = info

            def step(self, record: StepRecord) -> None:
                times.append(time.monotonic())

        def enough() -> bool:
            long = len(times) > 1 and times[-1] - times[0] > TRIAL_SECONDS
            return asked_to_stop() or long or len(times) >= TRIAL_STEPS

        keep_memory(self.config.training.device)
        clock, start = Clock(), time.monotonic()
        run = fit(self.config, self.config.data.dataset, sinks=[clock], stop=enough)
        if asked_to_stop():
            return None
        step = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else times[0] - start
        images = torch.rand(TRIAL_IMAGES, *run.image_shape)
        before = time.monotonic()
        run.predict(images)
        image = (time.monotonic() - before) / TRIAL_IMAGES
        begin = max(0.0, times[0] - start - step)
        return Pace(begin, step, image, clock.info.steps_per_epoch, clock.info.num_data)


def keep_memory(device: str) -> None:
    """On the CPU, every step takes the memory that the one before gave up."""
    from convdkm.runtime.allocator import keep_freed_memory
    from convdkm.training.world import find_device

    if find_device(device).type == "cpu":
        keep_freed_memory()

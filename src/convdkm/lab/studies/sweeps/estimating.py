"""How long runs will take: from finished runs of the same size, else from a short trial of one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from convdkm.data.registry import is_known, known_set
from convdkm.lab.studies.folder import TRIAL_LOG
from convdkm.lab.studies.launchers.base import Launcher, Stop
from convdkm.lab.studies.study import Foreseen, Progress
from convdkm.lab.studies.sweeps.folder import SweepFolder
from convdkm.lab.studies.sweeps.planning import PlannedRun
from convdkm.lab.studies.sweeps.tasks import Pace, PaceTask


def estimate(
    progress: Progress[PlannedRun],
    folder: SweepFolder,
    launcher: Launcher,
    *,
    where: Mapping[str, Any],
    stop: Stop,
) -> Foreseen:
    """What the runs that are still to do will take.

    Args:
        progress: which these are, and those whose times are known.
        folder: of the sweep.
        launcher: that they will be run by, and so the trials.
        where: options of the place, such as the device.
        stop: whether to stop.
    """
    known: dict[tuple[Any, ...], list[float]] = {}
    for run in progress.finished:
        metrics = folder.status(run).metrics
        if "seconds" in metrics:
            known.setdefault(run.cost, []).append(metrics["seconds"])
    unknown = {run.cost: run for run in progress.remaining if run.cost not in known}
    paces: dict[tuple[Any, ...], Pace] = {}
    problem = ""
    if unknown:
        tasks = {run.title: (cost, _timing(run, folder, where)) for cost, run in unknown.items()}
        for outcome in launcher.run([task for _, task in tasks.values()], stop):
            if outcome.status == "done":
                paces[tasks[outcome.name][0]] = outcome.value
            elif outcome.error:
                problem = f"{outcome.name}: {outcome.error}"
    seconds = {}
    for run in progress.remaining:
        if run.cost in known:
            seconds[run.place] = sum(known[run.cost]) / len(known[run.cost])
        elif run.cost in paces:
            seconds[run.place] = foreseen(run, paces[run.cost])
    return Foreseen(seconds, problem=problem)


def foreseen(run: PlannedRun, pace: Pace) -> float:
    """Seconds that a run takes: to begin, for its steps, and for its evaluations."""
    training, data = run.config.training, run.config.data
    tested = known_set(run.dataset).test_size if is_known(run.dataset) else pace.num_data // 5
    tested = min(tested, data.test_size or tested)
    evaluations = training.epochs // training.evaluate_every if training.evaluate_every else 1
    images = max(1, evaluations) * (tested + training.calibrate) + tested + pace.num_data
    steps = training.epochs * pace.steps_per_epoch
    return pace.begin + steps * pace.step + images * pace.image


def _timing(run: PlannedRun, folder: SweepFolder, where: Mapping[str, Any]) -> PaceTask:
    config = run.config.updated({**where, "evaluate_every": 0})
    log = str(folder.path / TRIAL_LOG) if folder.path.is_dir() else os.devnull
    return PaceTask(run.title, config.model_dump(mode="json"), log)

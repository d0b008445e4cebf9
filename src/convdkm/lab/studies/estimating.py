"""How long runs will take: from finished runs of the same size, else from a short trial of one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from convdkm.data.registry import is_known, known_set
from convdkm.lab.studies.folder import SweepFolder
from convdkm.lab.studies.launchers.base import Launcher, Stop
from convdkm.lab.studies.planning import PlannedRun
from convdkm.lab.studies.tasks import Trial, TrialTask


@dataclass(frozen=True)
class Estimate:
    """Seconds that every run takes, by its place; and why some are not known."""

    seconds: dict[str, float]
    problem: str = ""

    def remaining(self, runs: Iterable[PlannedRun], at_once: int | None) -> float | None:
        """Seconds until the last of the runs is done; None if that is not known."""
        each = [self.seconds.get(run.place) for run in runs]
        known = [value for value in each if value is not None]
        if len(known) < len(each) or at_once is None:
            return None
        return max(sum(known) / at_once, max(known, default=0.0))

    @property
    def total(self) -> float:
        """Of all runs one after another."""
        return sum(self.seconds.values())


def estimate(
    runs: Sequence[PlannedRun],
    finished: Sequence[PlannedRun],
    folder: SweepFolder,
    launcher: Launcher,
    *,
    where: dict[str, Any],
    stop: Stop,
) -> Estimate:
    """What the runs will take.

    Args:
        runs: that are still to do.
        finished: whose times are known.
        folder: of the sweep.
        launcher: that they will be run by, and so the trials.
        where: options of the place, such as the device.
        stop: whether to stop.
    """
    known: dict[tuple[Any, ...], list[float]] = {}
    for run in finished:
        metrics = folder.status(run).metrics or {}
        if "seconds" in metrics:
            known.setdefault(run.cost, []).append(metrics["seconds"])
    unknown = {run.cost: run for run in runs if run.cost not in known}
    trials: dict[tuple[Any, ...], Trial] = {}
    problem = ""
    if unknown:
        tasks = {run.title: (cost, _trial(run, folder, where)) for cost, run in unknown.items()}
        for outcome in launcher.run([task for _, task in tasks.values()], stop):
            if outcome.status == "done":
                trials[tasks[outcome.name][0]] = outcome.value
            elif outcome.error:
                problem = f"{outcome.name}: {outcome.error}"
    seconds = {}
    for run in runs:
        if run.cost in known:
            seconds[run.place] = sum(known[run.cost]) / len(known[run.cost])
        elif run.cost in trials:
            seconds[run.place] = foreseen(run, trials[run.cost])
    return Estimate(seconds, problem)


def foreseen(run: PlannedRun, trial: Trial) -> float:
    """Seconds that a run takes: to begin, for its steps, and for its evaluations."""
    training, data = run.config.training, run.config.data
    tested = known_set(run.dataset).test_size if is_known(run.dataset) else trial.num_data // 5
    tested = min(tested, data.test_size or tested)
    evaluations = training.epochs // training.evaluate_every if training.evaluate_every else 1
    images = max(1, evaluations) * (tested + training.calibrate) + tested + trial.num_data
    steps = training.epochs * trial.steps_per_epoch
    return trial.begin + steps * trial.step + images * trial.image


def _trial(run: PlannedRun, folder: SweepFolder, where: dict[str, Any]) -> TrialTask:
    config = run.config.updated({**where, "evaluate_every": 0})
    log = str(folder.path / "trial.log") if folder.path.is_dir() else os.devnull
    return TrialTask(run.title, config.model_dump(mode="json"), log)

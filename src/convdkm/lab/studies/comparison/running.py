"""The trials of a comparison, made one after another, each in a process of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from convdkm.data import Dataset
from convdkm.lab.studies.comparison.folder import ComparisonFolder, Scale, TrialResult
from convdkm.lab.studies.comparison.foreseeing import Place, setting_of
from convdkm.lab.studies.comparison.images import drawn, whitened
from convdkm.lab.studies.comparison.planning import PlannedTrial
from convdkm.lab.studies.comparison.trial import TrialTask
from convdkm.lab.studies.launchers.base import Launcher, Outcome, Resources, Stop
from convdkm.lab.studies.launchers.local import LocalLauncher
from convdkm.presets import preset

Begun = Callable[[PlannedTrial], None]


def one_at_a_time(threads: int | None = None) -> Launcher:
    """A process for each trial; one that was lost is not begun again by itself.

    Args:
        threads: of a process; by default ``OMP_NUM_THREADS`` where it is set, or all cores.
    """
    usual = os.environ.get("OMP_NUM_THREADS", "")
    if threads is None and usual.isdecimal() and int(usual) > 0:
        threads = int(usual)
    return LocalLauncher(1, Resources(cpus=threads, retries=0), "cpu")


def compare(
    folder: ComparisonFolder,
    trials: Sequence[PlannedTrial],
    scale: Scale,
    data: Dataset,
    *,
    launcher: Launcher,
    refused: Mapping[Place, str],
    stop: Stop = lambda: False,
    begun: Begun = lambda _: None,
) -> Iterator[tuple[PlannedTrial, TrialResult]]:
    """Make trials that are not finished, and yield each with its result as it ends.

    A failure is kept in the trial's file, and does not stop the rest.

    Args:
        folder: of the comparison.
        trials: that are still to do, in their order.
        scale: of all of them.
        data: the data set.
        launcher: makes one at a time.
        refused: methods and sizes that are not to be tried, with why.
        stop: asked now and then whether to stop; the trial under way is then given up.
        begun: told of every trial that begins.
    """
    waiting = []
    for trial in trials:
        if (reason := refused.get((trial.method, trial.size))) is None:
            waiting.append(trial)
        else:
            never = TrialResult(state="failed", error=reason, refused=True)
            folder.write(trial, never)
            yield trial, never
    for (size, seed), group in groupby(waiting, lambda each: (each.size, each.seed)):
        if stop():
            return
        images = folder.images(size, seed)
        _prepare(images, size, seed, scale, data)
        try:
            for trial in group:
                if stop():
                    return
                begun(trial)
                task = _task(folder, trial, scale, data, images)
                result = _tried(folder, trial, task, launcher, stop)
                if result is None:
                    return
                yield trial, result
        finally:
            images.unlink(missing_ok=True)
            _remove_if_empty(images.parent)


def _prepare(path: Path, size: int, seed: int, scale: Scale, data: Dataset) -> None:
    """Images of a size and a seed, whitened once for all methods."""
    epsilon = preset(scale.preset).config(scale.dataset).training.zca_epsilon
    whitened(drawn(data, size, seed), scale.whitening, epsilon).save(path)


def _task(
    folder: ComparisonFolder, trial: PlannedTrial, scale: Scale, data: Dataset, images: Path
) -> TrialTask:
    return TrialTask(
        trial.title,
        trial.method,
        setting_of(trial, scale, data, folder.file(trial, "kernel").absolute()),
        scale.minutes,
        str(images.absolute()),
        str(folder.file(trial).absolute()),
        str(folder.file(trial, "log").absolute()),
    )


def _tried(
    folder: ComparisonFolder, trial: PlannedTrial, task: TrialTask, launcher: Launcher, stop: Stop
) -> TrialResult | None:
    """The result of a trial; None if it was stopped."""
    folder.file(trial).unlink(missing_ok=True)
    outcome: Outcome | None = next(iter(launcher.run([task], stop)), None)
    if outcome is None or outcome.status == "stopped":
        return None
    if outcome.status == "done":
        return TrialResult.model_validate(outcome.value)
    if outcome.status == "failed":
        # Blocks of a kernel serve a trial that was killed, not one that cannot go on.
        shutil.rmtree(folder.file(trial, "kernel"), ignore_errors=True)
    result = TrialResult(state="failed", error=outcome.error)
    folder.write(trial, result)
    return result


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()

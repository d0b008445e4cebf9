"""A sweep: the runs that a table needs, made by a launcher, from wherever it has come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.folder import SweepFolder
from convdkm.lab.studies.launchers.base import Launcher, Outcome, Stop
from convdkm.lab.studies.planning import PlannedRun
from convdkm.lab.studies.tasks import RunTask


@dataclass(frozen=True)
class Progress:
    """The runs of a sweep by how far they have come."""

    finished: tuple[PlannedRun, ...]
    remaining: tuple[PlannedRun, ...]
    begun: int

    @classmethod
    def of(cls, folder: SweepFolder, runs: Sequence[PlannedRun]) -> Progress:
        """Look at every run; an error if one was made with other settings."""
        finished, remaining = list[PlannedRun](), list[PlannedRun]()
        begun = 0
        for run in runs:
            status = folder.status(run)
            if status.state == "other":
                raise InvalidInputError(
                    f"{folder.of(run)} holds a run with other settings ({status.detail}); choose"
                    " another --output, or remove that run"
                )
            (finished if status.state == "finished" else remaining).append(run)
            begun += status.state == "begun"
        return cls(tuple(finished), tuple(remaining), begun)


def sweep(
    folder: SweepFolder,
    runs: Sequence[PlannedRun],
    launcher: Launcher,
    where: dict[str, Any],
    stop: Stop = lambda: False,
) -> Iterator[tuple[PlannedRun, Outcome]]:
    """Make the runs, and yield each with its outcome as it ends.

    A failure is kept beside the run, and does not stop the rest.

    Args:
        folder: of the sweep.
        runs: that are still to do.
        launcher: to make them by.
        where: options of the place, such as the device.
        stop: asked now and then whether to stop; runs under way then save and end.
    """
    by_name = {run.title: run for run in runs}
    tasks = []
    for run in runs:
        folder.clear_failure(run)
        config = run.config.updated(where).model_dump(mode="json")
        place = str(folder.of(run).absolute())
        tasks.append(RunTask(run.title, place, config, str(folder.log(run).absolute())))
    for outcome in launcher.run(tasks, stop):
        run = by_name[outcome.name]
        if outcome.status in ("failed", "lost"):
            folder.note_failure(run, outcome.error, outcome.attempts)
        yield run, outcome

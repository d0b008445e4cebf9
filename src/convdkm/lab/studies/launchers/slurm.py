"""A cluster with SLURM, by submitit: one job for each run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.launchers.base import (
    Launcher,
    Outcome,
    Queue,
    Resources,
    Stop,
    Task,
    describe,
    execute,
    missing_extra,
)

POLL_SECONDS = 1.0


class SlurmLauncher(Launcher):
    """Jobs in SLURM's queue; those that reach their limit or are preempted are queued again.

    Args:
        folder: where submitit keeps its files; every node must see it.
        resources: of one run.
        hours: limit of a job.
        partition: of the cluster; its default if None.
        jobs: how many to have in the queue at a time; all by default.
        cluster: submitit's name of the executor; ``local`` runs jobs on this machine.
    """

    def __init__(
        self,
        folder: str | Path,
        resources: Resources | None = None,
        *,
        hours: float = 24.0,
        partition: str | None = None,
        jobs: int | None = None,
        cluster: str = "slurm",
    ) -> None:
        if hours <= 0:
            raise InvalidInputError(f"--hours must be more than 0, got {hours:g}")
        if jobs is not None and jobs < 1:
            raise InvalidInputError(f"--jobs must be at least 1, got {jobs}")
        try:
            import submitit
        except ImportError:
            raise missing_extra("submitit", "slurm") from None
        self.resources, self.jobs = resources or Resources(), jobs
        try:
            executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        except RuntimeError as error:
            raise InvalidInputError(
                f"cannot submit jobs from here ({' '.join(str(error).split())}); run this on a"
                " machine that has sbatch"
            ) from None
        given: dict[str, Any] = {
            "name": "convdkm",
            "timeout_min": max(1, round(60 * hours)),
            "cpus_per_task": self.resources.cpus or 1,
            "gpus_per_node": math.ceil(self.resources.gpus or 0),
        }
        if cluster == "slurm":
            given["slurm_max_num_timeout"] = 1000  # a run of days takes several jobs
            if partition is not None:
                given["slurm_partition"] = partition
        executor.update_parameters(**given)
        self._executor = executor

    @property
    def at_once(self) -> int | None:
        return self.jobs

    def run(self, tasks: Iterable[Task], stop: Stop = lambda: False) -> Iterator[Outcome]:
        waiting, most = Queue(tasks), self.jobs or math.inf
        queued = dict[str, tuple[Any, Task, int]]()
        try:
            while True:
                if stop():
                    yield from (Outcome(name, "stopped") for name in queued)
                    return
                while len(queued) < most and (taken := waiting.take()) is not None:
                    task, attempt = taken
                    job = self._executor.submit(Requeued(task, self.resources.cpus or 1))
                    queued[task.name] = (job, task, attempt)
                if not queued:
                    return
                ended = [name for name, (job, _, _) in queued.items() if job.done()]
                for name in ended:
                    job, task, attempt = queued.pop(name)
                    outcome = replace(_outcome(name, job), attempts=attempt)
                    if outcome.status == "lost" and attempt <= self.resources.retries:
                        waiting.put_back(task, attempt)
                    else:
                        yield outcome
                if not ended:
                    time.sleep(POLL_SECONDS)
        finally:
            for job, _, _ in queued.values():
                job.cancel()


@dataclass
class Requeued:
    """A task that submitit may queue again, where the job came to its limit: it then goes on."""

    task: Task
    threads: int

    def __call__(self) -> Outcome:
        return execute(self.task, self.threads)

    def checkpoint(self) -> Any:
        """What to submit in place of a job that is about to be ended."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _outcome(name: str, job: Any) -> Outcome:
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        outcome: Outcome = job.result()
    except (UncompletedJobError, FailedJobError) as error:
        return Outcome(name, "lost", error=describe(error))
    return outcome

"""A cluster with SLURM, by submitit: one job for each run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.launchers.base import (
    Job,
    Launcher,
    Outcome,
    Resources,
    Task,
    describe,
    execute,
    missing_extra,
)


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

    poll_seconds = 1.0

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
        super().__init__(jobs, resources)
        try:
            import submitit
        except ImportError:
            raise missing_extra("submitit", "slurm") from None
        try:
            self._executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        except RuntimeError as error:
            raise InvalidInputError(
                f"cannot submit jobs from here ({' '.join(str(error).split())}); run this on a"
                " machine that has sbatch"
            ) from None
        options: dict[str, Any] = {}
        if cluster == "slurm":
            options["slurm_max_num_timeout"] = 1000  # a run of days takes several jobs
            if partition is not None:
                options["slurm_partition"] = partition
        self._executor.update_parameters(
            name="convdkm",
            timeout_min=max(1, round(60 * hours)),
            cpus_per_task=self.resources.cpus or 1,
            gpus_per_node=math.ceil(self.resources.gpus or 0),
            **options,
        )

    def begin(self, task: Task) -> Job:
        requeued = Requeued(task, self.resources.cpus or 1)
        return _SlurmJob(self._executor.submit(requeued), task.name)


@dataclass(eq=False)
class _SlurmJob(Job):
    """A job of submitit; one that was told to stop is cancelled at once."""

    job: Any
    name: str
    cancelled: bool = False

    def ended(self) -> bool:
        return self.cancelled or bool(self.job.done())

    def outcome(self) -> Outcome:
        from submitit.core.utils import FailedJobError, UncompletedJobError

        if self.cancelled:
            return Outcome(self.name, "stopped")
        try:
            outcome: Outcome = self.job.result()
        except (UncompletedJobError, FailedJobError) as error:
            return Outcome(self.name, "lost", error=describe(error))
        return outcome

    def stop(self) -> None:
        self.job.cancel()
        self.cancelled = True


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

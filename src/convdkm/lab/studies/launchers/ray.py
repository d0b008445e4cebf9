"""A Ray cluster: one Ray task for each run, in a worker of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from convdkm.lab.studies.launchers.base import (
    Job,
    Launcher,
    Outcome,
    Resources,
    Stop,
    Task,
    describe,
    execute,
    missing_extra,
)


def execute_on_ray(task: Task, threads: int) -> Outcome:
    """:func:`execute` in a worker of Ray, which a request to stop reaches as an interrupt.

    Workers of a cluster that was begun in the background (``nohup … &``) inherit that interrupts
    are ignored, and would not hear of it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return execute(task, threads)


class RayLauncher(Launcher):
    """Ray's scheduler decides where and when runs are made; lost workers are replaced by it.

    Args:
        address: of the cluster; by default that of ``RAY_ADDRESS`` or on this machine, else one is
            started here for as long as it is needed.
        resources: of one run.
    """

    poll_seconds = 0.5

    def __init__(self, address: str | None = None, resources: Resources | None = None) -> None:
        super().__init__(None, resources)
        try:
            import ray
        except ImportError:
            raise missing_extra("Ray", "ray") from None
        self._ray, self._address = ray, address
        self.retries = 0  # left to Ray

    def run(self, tasks: Iterable[Task], stop: Stop = lambda: False) -> Iterator[Outcome]:
        ray = self._ray
        started_here = not ray.is_initialized()
        if started_here:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(self._address, log_to_driver=False, logging_level="error")
        try:
            yield from super().run(tasks, stop)
        finally:
            if started_here:
                ray.shutdown()

    def begin(self, task: Task) -> Job:
        given = self.resources
        cpus = given.cpus or 1
        remote = self._ray.remote(
            num_cpus=cpus, num_gpus=given.gpus or 0, max_retries=given.retries, max_calls=1
        )(execute_on_ray)
        return _RayTask(self._ray, remote.remote(task, cpus), task.name, 1 + given.retries)


@dataclass(eq=False)
class _RayTask(Job):
    """A task of Ray; ``attempts`` are those after which it counts as lost."""

    ray: Any
    reference: Any
    name: str
    attempts: int

    def ended(self) -> bool:
        return bool(self.ray.wait([self.reference], timeout=0)[0])

    def outcome(self) -> Outcome:
        errors = self.ray.exceptions
        try:
            outcome: Outcome = self.ray.get(self.reference)
        except (errors.TaskCancelledError, KeyboardInterrupt):
            return Outcome(self.name, "stopped")
        except errors.RayError as error:
            return Outcome(self.name, "lost", error=describe(error), attempts=self.attempts)
        return outcome

    def stop(self) -> None:
        self.ray.cancel(self.reference)

"""A Ray cluster: one Ray task for each run, in a worker of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from typing import Any

from convdkm.lab.studies.launchers.base import (
    Launcher,
    Outcome,
    Resources,
    Stop,
    Task,
    describe,
    execute,
    missing_extra,
)

POLL_SECONDS = 0.5


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

    def __init__(self, address: str | None = None, resources: Resources | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise missing_extra("Ray", "ray") from None
        self._ray = ray
        self.address, self.resources = address, resources or Resources()

    @property
    def at_once(self) -> int | None:
        return None

    def run(self, tasks: Iterable[Task], stop: Stop = lambda: False) -> Iterator[Outcome]:
        ray = self._ray
        own = not ray.is_initialized()
        if own:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(self.address, log_to_driver=False, logging_level="error")
        try:
            yield from self._follow(tasks, stop)
        finally:
            if own:
                ray.shutdown()

    def _follow(self, tasks: Iterable[Task], stop: Stop) -> Iterator[Outcome]:
        ray, given = self._ray, self.resources
        cpus = given.cpus or 1
        remote = ray.remote(
            num_cpus=cpus, num_gpus=given.gpus or 0, max_retries=given.retries, max_calls=1
        )(execute_on_ray)
        names: dict[Any, str] = {remote.remote(task, cpus): task.name for task in tasks}
        asked = False
        while names:
            if not asked and stop():
                asked = True
                for reference in names:
                    ray.cancel(reference)
            ready, _ = ray.wait(list(names), num_returns=1, timeout=POLL_SECONDS)
            for reference in ready:
                yield self._outcome(names.pop(reference), reference)

    def _outcome(self, name: str, reference: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(reference)
        except (errors.TaskCancelledError, KeyboardInterrupt):
            return Outcome(name, "stopped")
        except errors.RayError as error:
            attempts = 1 + self.resources.retries
            return Outcome(name, "lost", error=describe(error), attempts=attempts)
        return outcome

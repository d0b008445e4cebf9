"""A pool of processes on this machine, one for each run: a crash of one does not touch the rest."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.launchers.base import (
    Launcher,
    Outcome,
    Queue,
    Resources,
    Stop,
    Task,
    execute,
    heed_requests_to_stop,
)

POLL_SECONDS = 0.2


class LocalLauncher(Launcher):
    """Processes on this machine, as many at a time as there are devices or cores.

    Every process is given its share of the cores, and where it uses a GPU one of its own.

    Args:
        jobs: processes at a time; by default one for each GPU (or ``resources.gpus`` of one) where
            there are any, else one for each core (or ``resources.cpus`` of them).
        resources: of one run.
        device: of all runs, where it is not for each to choose.
    """

    def __init__(
        self,
        jobs: int | None = None,
        resources: Resources | None = None,
        device: str | None = None,
    ) -> None:
        if jobs is not None and jobs < 1:
            raise InvalidInputError(f"--jobs must be at least 1, got {jobs}")
        resources = resources or Resources()
        self.retries = resources.retries
        cores = cores_here()
        self.slots = _places(resources.gpus, device)
        if not self.slots:
            self.slots = [None] * max(1, cores // (resources.cpus or 1))
        if jobs is not None:
            self.slots = [self.slots[number % len(self.slots)] for number in range(jobs)]
        self.threads = resources.cpus or max(1, cores // len(self.slots))

    @property
    def at_once(self) -> int:
        return len(self.slots)

    def run(self, tasks: Iterable[Task], stop: Stop = lambda: False) -> Iterator[Outcome]:
        waiting = Queue(tasks)
        free, running = deque(self.slots), list[_Worker]()
        asked = False
        try:
            while True:
                if not asked and stop():
                    asked = True
                    for worker in running:
                        worker.ask_to_stop()
                while free and not asked and (taken := waiting.take()) is not None:
                    running.append(_Worker(*taken, free.popleft(), self.threads))
                if not running:
                    return
                wait([each for worker in running for each in worker.signs()], POLL_SECONDS)
                for worker in running:
                    worker.listen()
                for worker in [each for each in running if not each.process.is_alive()]:
                    running.remove(worker)
                    free.append(worker.device)
                    outcome = worker.outcome()
                    if asked and outcome.status == "lost":
                        outcome = replace(outcome, status="stopped", error="")
                    if outcome.status == "lost" and worker.attempt <= self.retries and not asked:
                        waiting.put_back(worker.task, worker.attempt)
                    else:
                        yield outcome
        finally:
            for worker in running:
                worker.kill()


@dataclass
class _Worker:
    """A process that does one task."""

    task: Task
    attempt: int
    device: str | None
    threads: int
    process: SpawnProcess = field(init=False)
    receiver: Connection = field(init=False)
    found: Outcome | None = None
    heard: bool = False

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.receiver, sender = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_work, args=(self.task, self.threads, self.device, sender), name=self.task.name
        )
        with _ignoring_interrupts():  # which the process inherits, from its first moment
            self.process.start()
        sender.close()

    def signs(self) -> list[Any]:
        """What becomes ready when it says something, or ends."""
        return [self.process.sentinel, *([] if self.heard else [self.receiver])]

    def listen(self) -> None:
        if not self.heard and self.receiver.poll():
            self.heard = True
            with suppress(EOFError, OSError):
                self.found = self.receiver.recv()

    def ask_to_stop(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.receiver.close()

    def outcome(self) -> Outcome:
        self.process.join()
        self.listen()
        code = self.process.exitcode or 0
        found = self.found or Outcome(self.task.name, "lost", error=_ending(code))
        self.receiver.close()
        self.process.close()
        return replace(found, attempts=self.attempt)


def _work(task: Task, threads: int, device: str | None, sender: Connection) -> None:
    heed_requests_to_stop()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    sender.send(execute(task, threads))
    sender.close()


def _end_with_parent() -> None:
    """End this process when its parent has died: nobody waits for it, and another may begin."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _ending(code: int) -> str:
    if code >= 0:
        return f"its process ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; was there too little memory?" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"


def cores_here() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def devices_here() -> list[str]:
    """Numbers of the GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [each for each in visible.split(",") if each.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def _places(gpus: float | None, device: str | None) -> list[str | None]:
    """The device of each process that may run at a time; none where cores are what counts."""
    if device == "cpu" or gpus == 0:
        return []
    if device not in (None, "auto"):
        return [None]  # all on that one
    found: list[str | None] = [*devices_here()]
    if gpus is None:
        return found
    if not found:
        raise InvalidInputError("--gpus asks for devices, and this machine has none")
    if gpus > 1:
        raise InvalidInputError(f"on this machine a run uses one device at most, got {gpus:g}")
    return found * int(1 / gpus)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

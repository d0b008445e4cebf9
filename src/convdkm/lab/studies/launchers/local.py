"""A pool of processes on this machine, one for each run: a crash of one does not touch the rest."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection

from convdkm.errors import InvalidInputError
from convdkm.lab.studies.launchers.base import (
    Job,
    Launcher,
    Outcome,
    Resources,
    Task,
    execute,
    heed_requests_to_stop,
)


class LocalLauncher(Launcher):
    """Processes on this machine, as many at a time as there are devices or cores.

    Every process is given its share of the cores, and where it uses a GPU one of its own.

    Args:
        jobs: processes at a time; by default one for each GPU (or ``resources.gpus`` of one) where
            there are any, else one for each core (or ``resources.cpus`` of them).
        resources: of one run.
        device: of all runs, where it is not for each to choose.
    """

    poll_seconds = 0.05

    def __init__(
        self,
        jobs: int | None = None,
        resources: Resources | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__(jobs, resources)
        affinity = getattr(os, "sched_getaffinity", None)
        cores, cpus = len(affinity(0)) if affinity else os.cpu_count() or 1, self.resources.cpus
        slots = _slots(self.resources.gpus, device) or [None] * max(1, cores // (cpus or 1))
        if jobs is not None:
            slots = [slots[index % len(slots)] for index in range(jobs)]
        self.slots, self.at_once = slots, len(slots)
        self.threads = cpus or max(1, cores // len(slots))
        self._free = deque(slots)

    def begin(self, task: Task) -> Job:
        return _Worker(task, self._free, self.threads)


class _Worker(Job):
    """A process that does one task, in one of the free slots."""

    def __init__(self, task: Task, free: deque[str | None], threads: int) -> None:
        self.name, self._free, self._device = task.name, free, free.popleft()
        self._found: Outcome | None = None
        context = multiprocessing.get_context("spawn")
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_work, args=(task, threads, self._device, sender), name=task.name
        )
        # The process inherits that interrupts are ignored; signals belong to the main thread.
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
        try:
            self._process.start()
        finally:
            if main:
                signal.signal(signal.SIGINT, before)
        sender.close()

    def ended(self) -> bool:
        self._listen()
        return not self._process.is_alive()

    def outcome(self) -> Outcome:
        self._process.join()
        self._listen()
        error = _ending(self._process.exitcode or 0)
        self._close()
        return self._found or Outcome(self.name, "lost", error=error)

    def stop(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._close()

    def _listen(self) -> None:
        """Take the outcome as soon as it is there: the process that sends it waits for that."""
        if self._found is None and self._receiver.poll():
            with suppress(EOFError, OSError):
                self._found = self._receiver.recv()

    def _close(self) -> None:
        self._receiver.close()
        self._process.close()
        self._free.append(self._device)


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
    """The exit code of a process in words."""
    if code >= 0:
        return f"its process ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; was there too little memory?" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"


def _slots(gpus: float | None, device: str | None) -> list[str | None]:
    """The device of each process that may run at a time; none where cores are what counts."""
    if device == "cpu" or gpus == 0:
        return []
    if device not in (None, "auto"):
        return [None]  # all on that one
    found: list[str | None]
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        found = [each for each in visible.split(",") if each.strip()]
    else:
        import torch

        found = [str(index) for index in range(torch.cuda.device_count())]
    if gpus is None:
        return found
    if not found:
        raise InvalidInputError("--gpus asks for devices, and this machine has none")
    if gpus > 1:
        raise InvalidInputError(f"on this machine a run uses one device at most, got {gpus:g}")
    return found * int(1 / gpus)

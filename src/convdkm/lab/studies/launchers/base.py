"""The interface of launchers, and what they share.

A launcher takes tasks, which are picklable functions of no arguments, and yields an outcome for
each as it ends. An error that a task raises is an outcome like any other; a worker that is lost is
replaced, and the task begins again there, a bounded number of times.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from convdkm.errors import ConvDKMError, InvalidInputError

Stop = Callable[[], bool]

_stop = threading.Event()


def asked_to_stop() -> bool:
    """Whether the task of this process should save and end, as soon as it can."""
    return _stop.is_set()


def heed_requests_to_stop() -> None:
    """Take SIGTERM as a request to stop, and leave Ctrl-C to the process that launched this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _stop.set())


class Task(Protocol):
    """Work to do elsewhere; it can be pickled, and begun again where it was lost.

    Its ``name`` is unique among those launched together, and ``log`` is the file that takes what it
    prints, if any.
    """

    @property
    def name(self) -> str: ...
    @property
    def log(self) -> str | None: ...

    def __call__(self) -> Any:
        """Do it; None if it was asked to stop before its end."""


@dataclass(frozen=True)
class Outcome:
    """How a task ended.

    Attributes:
        status: ``done``, ``failed`` (it raised an error), ``lost`` (its workers died, each time),
            ``stopped`` (it was asked to) or ``refused`` (it was not begun, since it cannot be
            done).
        value: its return value.
        error: what went wrong, in one line.
        attempts: how often it was begun.
    """

    name: str
    status: Literal["done", "failed", "lost", "stopped", "refused"]
    value: Any = None
    error: str = ""
    attempts: int = 1


@dataclass(frozen=True)
class Resources:
    """The resources of one run.

    Attributes:
        cpus: cores; a launcher decides if None.
        gpus: devices, or a share of one; a launcher decides if None.
        retries: how often a task whose worker was lost is begun again.
    """

    cpus: int | None = None
    gpus: float | None = None
    retries: int = 3

    def __post_init__(self) -> None:
        if self.cpus is not None and self.cpus < 1:
            raise InvalidInputError(f"a run needs at least one core, got --cpus {self.cpus}")
        if self.gpus is not None and self.gpus < 0:
            raise InvalidInputError(f"--gpus must not be negative, got {self.gpus:g}")
        if self.retries < 0:
            raise InvalidInputError(f"--retries must not be negative, got {self.retries}")


class Job(ABC):
    """A task under way."""

    @abstractmethod
    def ended(self) -> bool:
        """Whether :meth:`outcome` is known."""

    @abstractmethod
    def outcome(self) -> Outcome:
        """How the task ended."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the task to save and end."""

    def kill(self) -> None:
        """Give the task up: nobody waits for it any more."""
        self.stop()


class Launcher(ABC):
    """An engine that runs tasks.

    Attributes:
        resources: of one task.
        at_once: how many tasks run at a time; None if that is not known here.
        retries: how often a task whose worker was lost is begun again by :meth:`run`.
        poll_seconds: time between two looks at the tasks under way.
    """

    poll_seconds: ClassVar[float]

    def __init__(self, jobs: int | None = None, resources: Resources | None = None) -> None:
        if jobs is not None and jobs < 1:
            raise InvalidInputError(f"--jobs must be at least 1, got {jobs}")
        self.resources = resources or Resources()
        self.at_once, self.retries = jobs, self.resources.retries

    @abstractmethod
    def begin(self, task: Task) -> Job:
        """Begin a task; there is room for it."""

    def run(self, tasks: Iterable[Task], stop: Stop = lambda: False) -> Iterator[Outcome]:
        """Run tasks, and yield their outcomes as they end.

        Args:
            tasks: with different names; each is asked for when there is room for it.
            stop: asked now and then whether to stop; tasks under way are then told to.
        """
        waiting: Iterator[tuple[Task, int]] = ((task, 1) for task in tasks)
        running = dict[Job, tuple[Task, int]]()
        most, asked = self.at_once or math.inf, False
        try:
            while True:
                if not asked and stop():
                    asked = True
                    for job in running:
                        job.stop()
                while not asked and len(running) < most and (taken := next(waiting, None)):
                    running[self.begin(taken[0])] = taken
                if not running:
                    return
                ended = [job for job in running if job.ended()]
                for job in ended:
                    task, attempt = running.pop(job)
                    outcome = job.outcome()
                    if outcome.status == "lost" and asked:
                        yield Outcome(task.name, "stopped", attempts=attempt)
                    elif outcome.status == "lost" and attempt <= self.retries:
                        waiting = chain(waiting, [(task, attempt + 1)])
                    else:
                        yield replace(outcome, attempts=max(attempt, outcome.attempts))
                if not ended:
                    time.sleep(self.poll_seconds)
        finally:
            for job in running:
                job.kill()


def execute(task: Task, threads: int | None = None) -> Outcome:
    """Do a task in this process; an error that it raises is part of the outcome."""
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
    with _printing_to(task.log):
        try:
            value = task()
        except KeyboardInterrupt:
            return Outcome(task.name, "stopped")
        except Exception as error:
            traceback.print_exc()
            return Outcome(task.name, "failed", error=describe(error))
    return Outcome(task.name, "stopped" if value is None else "done", value)


def describe(error: BaseException) -> str:
    """An error in one line; the type is named unless the error is of this library."""
    text, kind = " ".join(str(error).split()), type(error).__name__
    if isinstance(error, ConvDKMError):
        return text
    return f"{kind}: {text}" if text else kind


def missing_extra(package: str, extra: str) -> InvalidInputError:
    """The error where an optional package is not installed."""
    return InvalidInputError(
        f"--launcher {extra} needs {package}, which is not installed; pip install convdkm[{extra}]"
    )


@contextmanager
def _printing_to(log: str | None) -> Iterator[None]:
    """Inside the block, all that this process and its libraries print goes to a file."""
    if log is None:
        yield
        return
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    streams = (sys.stdout, sys.stderr)
    with open(log, "ab") as target:
        for stream in streams:
            stream.flush()
        kept = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
        try:
            for descriptor in kept:
                os.dup2(target.fileno(), descriptor)
            yield
        finally:
            for stream in streams:
                stream.flush()
            for descriptor, before in kept.items():
                os.dup2(before, descriptor)
                os.close(before)

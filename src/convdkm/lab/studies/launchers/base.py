"""What every engine of execution has in common.

A launcher takes tasks, which are picklable functions of nothing, and yields an outcome for each as
it ends. What a task raises is an outcome like any other; a worker that is lost is replaced, and the
task begins again there, a bounded number of times.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from convdkm.errors import ConvDKMError, InvalidInputError

Status = Literal["done", "failed", "lost", "stopped", "refused"]
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
    """Work to do elsewhere; it can be pickled, and begun again where it was lost."""

    @property
    def name(self) -> str:
        """Unique among those launched together."""

    @property
    def log(self) -> str | None:
        """The file that takes what it prints, if any."""

    def __call__(self) -> Any:
        """Do it; None if it was asked to stop before its end."""


@dataclass(frozen=True)
class Outcome:
    """How a task ended.

    Attributes:
        name: of the task.
        status: ``done``, ``failed`` (it raised an error), ``lost`` (its workers died, each time),
            ``stopped`` (it was asked to) or ``refused`` (it was not begun, since it cannot be
            done).
        value: what it returned.
        error: what went wrong, in one line.
        attempts: how often it was begun.
    """

    name: str
    status: Status
    value: Any = None
    error: str = ""
    attempts: int = 1


@dataclass(frozen=True)
class Resources:
    """What one run is given.

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


class Launcher(ABC):
    """An engine that runs tasks."""

    @property
    @abstractmethod
    def at_once(self) -> int | None:
        """How many tasks run at a time; None if that is not known here."""

    @abstractmethod
    def run(self, tasks: Iterable[Task], stop: Stop = lambda: False) -> Iterator[Outcome]:
        """Run tasks, and yield their outcomes as they end.

        Args:
            tasks: with different names; each is asked for when there is room for it.
            stop: asked now and then whether to stop; tasks under way are then told to.
        """


class Queue:
    """Tasks that wait: new ones first, then those that were lost."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._new, self._again = iter(tasks), deque[tuple[Task, int]]()

    def take(self) -> tuple[Task, int] | None:
        """The next task, and the number of this attempt; None if none waits."""
        task = next(self._new, None)
        if task is not None:
            return task, 1
        return self._again.popleft() if self._again else None

    def put_back(self, task: Task, attempt: int) -> None:
        """Let a task be begun again."""
        self._again.append((task, attempt + 1))


def execute(task: Task, threads: int | None = None) -> Outcome:
    """Do a task in this process; what it raises is part of the outcome."""
    if threads is not None:
        _use_threads(threads)
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
    """An error in one line; those of this library speak for themselves."""
    text = " ".join(str(error).split())
    if isinstance(error, ConvDKMError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def missing_extra(package: str, extra: str) -> InvalidInputError:
    """The error where an optional package is not installed."""
    return InvalidInputError(
        f"--launcher {extra} needs {package}, which is not installed; pip install convdkm[{extra}]"
    )


def _use_threads(count: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


class _printing_to:  # noqa: N801
    """While entered, all that this process and its libraries print goes to a file."""

    def __init__(self, log: str | None) -> None:
        self._log, self._kept = log, dict[int, int]()

    def __enter__(self) -> None:
        if self._log is None:
            return
        path = Path(self._log)
        path.parent.mkdir(parents=True, exist_ok=True)
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._flush()
        for number in (1, 2):
            self._kept[number] = os.dup(number)
            os.dup2(target, number)
        os.close(target)

    def __exit__(self, *exception: object) -> None:
        self._flush()
        for number, kept in self._kept.items():
            os.dup2(kept, number)
            os.close(kept)
        self._kept.clear()

    @staticmethod
    def _flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()

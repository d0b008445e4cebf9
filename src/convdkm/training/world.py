"""The processes that train together: one alone, or those that ``torchrun`` started."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
from torch import distributed

from convdkm.errors import ConvDKMError, InvalidInputError


class ProcessLostError(ConvDKMError, ConnectionError):
    """Another of the processes that train together is gone, or does not answer."""


@dataclass(frozen=True)
class World:
    """This process among those that train one model."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and speaks to the user."""
        return self.rank == 0

    def shares(self, total: int) -> list[range]:
        """The images of a batch of ``total`` that each process works on."""
        return parts(range(total), self.size)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each of the values, summed over the processes."""
        return self._reduced(values, "SUM")

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any of the processes."""
        return self._reduced([float(flag)], "MAX") != [0.0]

    def from_leader(self, value: Any) -> Any:
        """The leader's value, in every process."""
        if self.size == 1:
            return value
        holder = [value]
        distributed.broadcast_object_list(holder, src=0)
        return holder[0]

    def _reduced(self, values: Sequence[float], how: str) -> list[float]:
        if self.size == 1:
            return list(values)
        nccl = distributed.get_backend() == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if nccl else None
        tensor = torch.tensor(values, dtype=torch.float64, device=device)
        distributed.all_reduce(tensor, getattr(distributed.ReduceOp, how))
        reduced: list[float] = tensor.tolist()
        return reduced


def parts(images: range, count: int) -> list[range]:
    """``count`` consecutive parts, the first of which are longer by one where they must be."""
    least, longer = divmod(len(images), count)
    ends = [images.start + least * part + min(part, longer) for part in range(count + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


def _is_initialized() -> bool:
    return distributed.is_available() and distributed.is_initialized()


@contextmanager
def joined_world(timeout_minutes: float = 30) -> Iterator[World]:
    """Join the processes that ``torchrun`` started, if it did; alone otherwise.

    Args:
        timeout_minutes: how long a process waits for the others before it gives them up.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if _is_initialized():
        yield World(distributed.get_rank(), distributed.get_world_size())
        return
    if size == 1:
        yield World()
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "nccl"
    distributed.init_process_group(backend, timeout=timedelta(minutes=timeout_minutes))
    try:
        with noticing_losses():
            yield World(distributed.get_rank(), size)
            # One that leaves early takes its connections with it, and may abort the others.
            distributed.barrier()
    finally:
        distributed.destroy_process_group()


@contextmanager
def deferred_termination(world: World) -> Iterator[Callable[[], bool]]:
    """Whether SIGTERM came, which inside the block does not end the process.

    ``torchrun`` sends it to those that are left when a process has died: the leader has to save
    first. Left alone where there is one process, or where the program sees to the signal itself.
    """
    asked = threading.Event()
    in_main_thread = threading.current_thread() is threading.main_thread()
    if (
        world.size == 1
        or not in_main_thread
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield asked.is_set
        return
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


_LOST = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|timed? ?out|gloo|nccl|remote process",
    re.IGNORECASE,
)


@contextmanager
def noticing_losses() -> Iterator[None]:
    """Raise a :class:`ProcessLostError` where PyTorch says that another process does not answer."""
    try:
        yield
    except RuntimeError as error:
        reason = (str(error).splitlines() or [""])[0]
        if not _is_initialized() or isinstance(error, ConvDKMError) or not _LOST.search(reason):
            raise
        raise ProcessLostError(f"another process is gone or does not answer ({reason})") from error


def find_device(name: str) -> torch.device:
    """The device of that name, ``auto`` being the best there is; absent ones are an error."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        present = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        if torch.backends.mps.is_available():
            present.append("mps")
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"device {name!r} is not there ({reason}); this machine has {', '.join(present)}"
        ) from None
    if device.type == "meta":
        raise InvalidInputError("device 'meta' holds no data; train on cpu or cuda")
    return device

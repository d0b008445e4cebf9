"""The processes that train together: one alone, or those that ``torchrun`` started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from convdkm.errors import InvalidInputError


@dataclass(frozen=True)
class World:
    """This process among those that train one model."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and speaks to the user."""
        return self.rank == 0

    def average(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its average over the processes."""
        if self.size == 1:
            return
        for tensor in tensors:
            distributed.all_reduce(tensor)
            tensor.div_(self.size)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any of the processes."""
        if self.size == 1:
            return flag
        value = torch.tensor(float(flag), device=self._device())
        distributed.all_reduce(value, distributed.ReduceOp.MAX)
        return bool(value > 0)

    def from_leader(self, value: Any) -> Any:
        """The leader's value, in every process."""
        if self.size == 1:
            return value
        holder = [value]
        distributed.broadcast_object_list(holder, src=0)
        return holder[0]

    def _device(self) -> torch.device:
        nccl = distributed.get_backend() == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


@contextmanager
def joined_world() -> Iterator[World]:
    """Join the processes that ``torchrun`` started, if it did; alone otherwise."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or distributed.is_initialized():
        yield (
            World(distributed.get_rank(), distributed.get_world_size())
            if distributed.is_available() and distributed.is_initialized()
            else World()
        )
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "nccl"
    distributed.init_process_group(backend, timeout=timedelta(hours=2))
    try:
        yield World(distributed.get_rank(), size)
    finally:
        distributed.destroy_process_group()


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

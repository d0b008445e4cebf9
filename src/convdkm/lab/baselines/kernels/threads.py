"""Independent pieces of work by several threads, each of which has one core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Given = TypeVar("Given")
Result = TypeVar("Result")


def in_threads(
    work: Callable[[Given], Result], jobs: Iterable[Given], count: int
) -> Iterator[tuple[Given, Result]]:
    """Every job with its result, in order.

    The operations of a job are too small to be shared by cores; whole jobs are not.

    Args:
        work: what is done; PyTorch's own operations let go of Python's lock while they compute,
            compiled functions do not.
        jobs: what it is done to.
        count: of threads; 1 for the caller's alone, with all cores that it has.
    """
    if count == 1:
        for job in jobs:
            yield job, work(job)
        return
    without_gradients = torch.no_grad()(work)  # each thread has its own switch for them
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
    try:
        waiting: deque[tuple[Given, Future[Result]]] = deque()
        for job in jobs:
            waiting.append((job, pool.submit(without_gradients, job)))
            if len(waiting) > 2 * count:
                first, future = waiting.popleft()
                yield first, future.result()
        for job, future in waiting:
            yield job, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)

r"""What a pass over part of a batch has to know of the rest: its means, and its random numbers.

A batch of B images may be worked on by several processes, and in several pieces. While a
:class:`Share` is entered, :func:`batch_mean` is the mean over the images of all processes, and
:func:`batch_noise` gives every image the numbers that it would have if one process worked on the
whole batch. Outside, both are what PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Share:
    """The images of one pass, among those of the whole batch.

    Attributes:
        first: place in the whole batch of the first image.
        count: images that count; 0 where a process has none left and works on a borrowed one.
        together: images of this pass over all processes.
        total: images of the whole batch.
        seed: of the random numbers of the whole batch.
        synchronised: whether other processes work on theirs at the same time.
    """

    first: int
    count: int
    together: int
    total: int
    seed: int
    synchronised: bool


_SHARE: ContextVar[Share | None] = ContextVar("share", default=None)


@contextmanager
def working_on(share: Share) -> Iterator[None]:
    """Inside the block, batches are this share of a whole one."""
    token = _SHARE.set(share)
    try:
        yield
    finally:
        _SHARE.reset(token)


def batch_mean(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    r"""The mean over ``dims``, the first of which are the images, of all processes together.

    .. math:: \bar x = \sum_r \frac{B_r}{B}\,\bar x_r

    with the :math:`B_r` images of process r. Gradients flow back to every process: that of
    :math:`\bar x_r` is :math:`B_r/B` times the sum over the processes of those of
    :math:`\bar x`.
    """
    share = _SHARE.get()
    if share is None or not share.synchronised:
        return values.mean(dims)
    return _SumOverProcesses.apply(values.mean(dims) * (share.count / share.together))


def mean_and_pull_back(
    values: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """:func:`batch_mean` over the first axis, outside autograd, and its backward pass.

    That is a function from the gradient by the mean to the gradient by each value, which is the
    same for all.

    Args:
        values: a vector, or rows.
        dtype: of the mean.
    """
    share, count = _SHARE.get(), len(values)
    mean = values.mean(0, dtype=dtype)
    if share is None or not share.synchronised:
        return mean, lambda grad: grad / count
    weight = share.count / share.together
    return _summed(mean * weight), lambda grad: _summed(grad) * (weight / count)


def batch_noise(size: tuple[int, ...], like: Tensor, *, images: int = 0) -> Tensor:
    """Standard normal numbers with the dtype and device of ``like``.

    The dimension ``images`` runs over the images of the batch, and the numbers of an image depend
    on its place in the whole batch alone.
    """
    share = _SHARE.get()
    if share is None:
        return torch.randn(size, dtype=like.dtype, device=like.device)
    whole = [*size[:images], share.total, *size[images + 1 :]]
    generator = torch.Generator(like.device).manual_seed(share.seed)
    noise = torch.randn(whole, generator=generator, dtype=like.dtype, device=like.device)
    if size[images] == share.total:
        return noise
    return noise.narrow(
        images, share.first, size[images]
    ).clone()  # a view would keep the rest in memory


class _SumOverProcesses(torch.autograd.Function):
    """The sum over all processes, of the values and of their gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        del ctx
        return _summed(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        return _summed(gradients[0])


def _summed(values: Tensor) -> Tensor:
    total = values.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total)
    return total

r"""The kernel of an infinitely wide convolutional network between whole images."""

from __future__ import annotations

import timeit
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from convdkm.errors import InvalidInputError
from convdkm.lab.baselines.base import Tell
from convdkm.lab.baselines.kernels.layers import Architecture
from convdkm.lab.baselines.kernels.progress import Progress
from convdkm.lab.baselines.kernels.tiles import Prepared, Tiles, pairs_within, steps

ROWS = 64
"""Images of the left side that a thread works on at a time."""
Given = TypeVar("Given")
Result = TypeVar("Result")


@dataclass(eq=False, repr=False)
class NNGPKernel:
    r"""The exact NNGP kernel of an :class:`Architecture`.

    >>> import torch
    >>> from convdkm.lab.baselines.kernels import NNGPKernel, myrtle
    >>> kernel = NNGPKernel(myrtle(5))
    >>> kernel.matrix(torch.randn(4, 3, 8, 8)).shape
    torch.Size([4, 4])

    Args:
        architecture: the network.
        flips: average over mirror images (Li et al., 2019), :math:`\tfrac12(k(x, x') +
            k(x, \text{flip } x'))`, which takes twice the time.
        normalise: divide by :math:`\sqrt{k(x, x)\,k(x', x')}`, so that all images have variance 1.
        normalise_inputs: first bring the pixels of each image to mean 0 and mean square 1.
        dtype: precision of the covariances. In float32 sums over places are still added up in
            float64, and entries come out to about six digits; results are always float64.
        memory: bytes that working space may take, beyond the images and the result.
    """

    architecture: Architecture
    _: KW_ONLY
    flips: bool = False
    normalise: bool = False
    normalise_inputs: bool = False
    dtype: torch.dtype = torch.float32
    memory: int = 1 << 28
    compiled: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.dtype not in (torch.float32, torch.float64):
            raise InvalidInputError(f"a kernel is computed in float32 or float64, got {self.dtype}")
        if self.memory < 1:
            raise InvalidInputError(f"memory must be a positive number of bytes, got {self.memory}")

    def compile(self, *, enabled: bool = True) -> NNGPKernel:
        """Let ``torch.compile`` make nonlinearities and convolutions, or not; returns itself.

        Each of them, with the convolution below it, is then one pass over memory; kernels that do
        not need all pairs of places have no use for it. The first pairs wait for the compiler, some
        ten seconds or more. Where there is none, a warning says so and PyTorch's operations are
        used.
        """
        self.compiled = enabled
        return self

    @property
    def name(self) -> str:
        """How it is called in tables."""
        marks = ("flip", self.flips), ("normalised", self.normalise or self.normalise_inputs)
        return "-".join([self.architecture.name, *(mark for mark, there in marks if there)])

    def describe(self) -> dict[str, Any]:
        """What the entries depend on, for a file."""
        return {
            **self.architecture.describe(),
            "flips": self.flips,
            "normalise": self.normalise,
            "normalise_inputs": self.normalise_inputs,
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    def check(self, images: Tensor) -> Tiles:
        """How images of this shape are worked on; an error if they cannot be."""
        if images.ndim != 4 or not images.is_floating_point() or 0 in images.shape:
            raise InvalidInputError(
                "images must be floating-point, (N, channels, height, width), and hold something;"
                f" got {tuple(images.shape)} of {images.dtype}"
            )
        bad = int((~torch.isfinite(images)).sum())
        if bad:
            raise InvalidInputError(f"{bad} values of the images are NaN or infinite")
        shape, itemsize = images.shape[1:], self.dtype.itemsize
        tiles = Tiles(self.architecture, shape, itemsize, self.memory, compiled=self.compiled)
        if self.memory < tiles.least:
            raise InvalidInputError(
                f"{self.name} needs {tiles.least / 2**20:.1f} MiB of working space for"
                f" {shape[1]}×{shape[2]} images, more than memory={self.memory} bytes"
                f" ({self.memory / 2**20:.1f} MiB) allows; give it more"
            )
        return tiles

    @torch.no_grad()
    def prepare(self, images: Tensor) -> Prepared:
        """Images with all that is computed once for each of them."""
        tiles = self.check(images)
        images = images.detach().to("cpu", self.dtype)
        ready = tiles.prepare(_normalised(images) if self.normalise_inputs else images)
        if not self.normalise:
            return ready
        variance = self._averaged(tiles.matched, ready, ready)
        empty = int((variance <= 0).sum())
        if empty:
            raise InvalidInputError(
                f"{empty} images have kernel zero with themselves and cannot be normalised; are"
                " they all black? Leave them out, or do not normalise"
            )
        return replace(ready, scale=variance.rsqrt())

    def matrix(
        self, images: Tensor, others: Tensor | None = None, *, tell: Tell | None = None
    ) -> Tensor:
        """The kernel matrix, ``(N1, N2)`` in float64.

        Args:
            images: ``(N1, C, H, W)``.
            others: ``(N2, C, H, W)``; the same if not given, and then each pair is computed once.
            tell: called with lines that say how far it is.
        """
        left = self.prepare(images)
        if others is None:
            return self.block(left, None, tell=tell)
        if images.shape[1:] != others.shape[1:]:
            raise InvalidInputError(
                "images on both sides must have the same channels and size, got"
                f" {tuple(images.shape[1:])} and {tuple(others.shape[1:])}"
            )
        return self.block(left, self.prepare(others), tell=tell)

    def variance(self, images: Tensor) -> Tensor:
        """k(x, x) of each image, ``(N,)`` in float64."""
        if self.normalise:
            self.check(images)
            return torch.ones(len(images), dtype=torch.float64)
        ready = self.prepare(images)
        return self._averaged(ready.tiles.matched, ready, ready)

    @torch.no_grad()
    def block(self, left: Prepared, right: Prepared | None, *, tell: Tell | None = None) -> Tensor:
        """The kernel between prepared images; of the left ones with themselves if right is None."""
        other = left if right is None else right
        values = torch.empty((len(left), len(other)), dtype=torch.float64)
        pairs = len(left) * (len(left) + 1) // 2 if right is None else values.numel()
        progress = Progress(f"kernel {self.name}", pairs, tell)
        # Of a symmetric matrix only the parts on the diagonal and above it.
        jobs = (
            (rows, columns)
            for columns in steps(len(other), left.tiles.right)
            for rows in steps(columns.stop if right is None else len(left), ROWS)
        )

        def work(job: tuple[slice, slice]) -> Tensor:
            return self._tile(left.part(job[0]), other.part(job[1]))

        for (rows, columns), found in in_threads(work, jobs, left.tiles.threads):
            values[rows, columns] = found
            progress.add(found.numel() if right is not None else pairs_within(rows, columns))
        for index in range(len(values) if right is None else 0):
            values[index + 1 :, index] = values[index, index + 1 :]
        return values

    def seconds_per_pair(self, images: Tensor) -> float:
        """Measured on a few pairs for each thread: the quicker of two trials."""
        tiles = self.check(images[:1])
        ready = self.prepare(images[: tiles.right * tiles.threads])
        rows = ready.part(slice(0, tiles.left))
        trials = timeit.repeat(lambda: self.block(rows, ready), number=1, repeat=2)
        return min(trials) / (len(rows) * len(ready))

    def _tile(self, left: Prepared, right: Prepared) -> Tensor:
        values = self._averaged(left.tiles.tile, left, right)
        if left.scale is not None and right.scale is not None:
            values = values * left.scale[:, None] * right.scale
        return values

    def _averaged(
        self, kernel: Callable[[Prepared, Prepared], Tensor], left: Prepared, right: Prepared
    ) -> Tensor:
        """A kernel, averaged over mirror images of the right side if this one is."""
        values = kernel(left, right)
        return values.add_(kernel(left, right.flipped())).mul_(0.5) if self.flips else values


def _normalised(images: Tensor) -> Tensor:
    centred = images - images.mean((1, 2, 3), keepdim=True)
    variance = centred.square().mean((1, 2, 3), keepdim=True)
    flat = int((variance <= 0).sum())
    if flat:
        raise InvalidInputError(
            f"{flat} images are of one colour and cannot be normalised; leave them out, or do not"
            " normalise the inputs"
        )
    return centred * variance.rsqrt()


def in_threads(
    work: Callable[[Given], Result], jobs: Iterable[Given], count: int
) -> Iterator[tuple[Given, Result]]:
    """Every job with its result, in order, by ``count`` threads of one core each.

    The operations of a job are too small to be shared by cores. PyTorch's operations release
    Python's lock while they compute; compiled functions do not. With a count of 1 the work is done
    by the caller's thread, with all its cores.
    """
    if count == 1:
        yield from ((job, work(job)) for job in jobs)
        return
    without_gradients = torch.no_grad()(work)  # the switch is per thread
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

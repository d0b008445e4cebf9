"""Sliding windows over 1-D, 2-D or 3-D grids: the geometry shared by convolution and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from convdkm.choices import Border
from convdkm.errors import GramError, InvalidInputError
from convdkm.numerics import mix
from convdkm.runtime.maps import without_autocast

Size = int | Sequence[int]
Padding = int | Sequence[int] | str

Reduction = Literal["sum", "mean", "inside"]
"""The sum over a window; over the number of its places; over that of its places inside."""

LARGEST_GRID = 64
"""Side of a grid up to which products with matrices take less time than a pooling operation."""
FEW_PLACES = 64
"""Places of a grid up to which one product over all takes less time than one for each axis."""

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_AVERAGES = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _per_axis(name: str, value: Size, ndim: int, least: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,) * ndim
    if len(values) != ndim or any(not isinstance(v, int) or v < least for v in values):
        raise InvalidInputError(
            f"{name} must be an integer or {ndim} integers, each at least {least}; got {value!r}"
        )
    return values


def every(values: Tensor, strides: Sequence[int]) -> Tensor:
    """``(..., *space)`` subsampled by strides, from the first place on."""
    first = values.ndim - len(strides)
    return values[(slice(None),) * first + tuple(slice(None, None, stride) for stride in strides)]


@dataclass(frozen=True)
class Window:
    """A filter's footprint: size, stride, dilation, and zeros put around the image.

    ``padding`` holds the zeros (before, after) each axis.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    @classmethod
    def of(
        cls, size: Size, stride: Size = 1, padding: Padding = 0, dilation: Size = 1, ndim: int = 2
    ) -> Window:
        """Check and complete the arguments of a convolution.

        ``padding="same"`` centres the filter on every ``stride``-th place (for an even extent the
        extra zero comes after the image); ``"valid"`` adds no zeros.
        """
        if ndim not in (1, 2, 3):
            raise InvalidInputError(f"data may have 1, 2 or 3 spatial axes, got ndim={ndim}")
        sizes = _per_axis("kernel_size", size, ndim, 1)
        dilations = _per_axis("dilation", dilation, ndim, 1)
        pads: tuple[tuple[int, int], ...]
        if padding == "same":
            extents = [d * (k - 1) for d, k in zip(dilations, sizes, strict=True)]
            pads = tuple((extent // 2, extent - extent // 2) for extent in extents)
        elif padding == "valid":
            pads = ((0, 0),) * ndim
        elif isinstance(padding, str):
            raise InvalidInputError(f"padding must be 'same', 'valid' or integers, got {padding!r}")
        else:
            pads = tuple((p, p) for p in _per_axis("padding", padding, ndim, 0))
        return cls(sizes, _per_axis("stride", stride, ndim, 1), dilations, pads)

    @property
    def ndim(self) -> int:
        return len(self.size)

    @property
    def count(self) -> int:
        """D, the number of places in the filter."""
        return math.prod(self.size)

    def output_space(self, space: Sequence[int]) -> tuple[int, ...]:
        """Shape of the grid that the window's positions form on a grid of shape ``space``."""
        self.require_space(space)
        return tuple(self.positions(axis, length) for axis, length in enumerate(space))

    def positions(self, axis: int, length: int) -> int:
        """How many places the window takes along an axis of that length."""
        free = length + sum(self.padding[axis]) - self.extent(axis)
        return free // self.stride[axis] + 1

    def extent(self, axis: int) -> int:
        """Places from the first of the window to its last along an axis."""
        return self.dilation[axis] * (self.size[axis] - 1) + 1

    def require_space(self, space: Sequence[int]) -> None:
        """Raise unless the window fits a grid of shape ``space``."""
        if len(space) != self.ndim:
            raise GramError(
                f"this layer works on {self.ndim}-D data, got a grid of shape {tuple(space)}"
            )
        for axis, length in enumerate(space):
            padded = length + sum(self.padding[axis])
            if padded < self.extent(axis):
                raise GramError(
                    f"the filter spans {self.extent(axis)} places along axis {axis}, but the grid"
                    f" {tuple(space)} with its padding has only {padded}"
                )

    def pad(self, maps: Tensor) -> Tensor:
        """Zeros around ``(N, P, *space)``."""
        flat = [amount for pair in reversed(self.padding) for amount in pair]
        return F.pad(maps, flat) if any(flat) else maps

    def convolve(self, maps: Tensor, weight: Tensor) -> Tensor:
        """Convolve ``(N, P, *space)`` with ``(Q, P, *size)``."""
        self.require_space(maps.shape[2:])
        if self.is_point:
            # Not by conv2d: with a stride and few channels stored last, oneDNN's backward pass
            # writes outside its memory (seen with torch 2.13).
            return mix(weight.flatten(1), every(maps, self.stride))
        before = tuple(pair[0] for pair in self.padding)
        if not self.is_symmetric:
            maps, before = self.pad(maps), (0,) * self.ndim
        convolution = _CONVOLUTIONS[self.ndim]
        return convolution(maps, weight, None, self.stride, before, self.dilation)

    @property
    def is_point(self) -> bool:
        """One place, and no zeros around the image: a product with a matrix at every place."""
        return self.count == 1 and not any(map(any, self.padding))

    @property
    def is_symmetric(self) -> bool:
        """As many zeros before every axis as after it."""
        return all(before == after for before, after in self.padding)

    def convolve_backward(
        self, grad: Tensor, maps: Tensor, weight: Tensor, needs_weight: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of :meth:`convolve` by maps and weight; for symmetric padding."""
        pads = tuple(before for before, _ in self.padding)
        not_transposed, groups = (False, (0,) * self.ndim), 1
        geometry = (self.stride, pads, self.dilation, *not_transposed, groups)
        by_maps, by_weight, _ = torch.ops.aten.convolution_backward(
            grad, maps, weight, None, *geometry, (True, needs_weight, False)
        )
        return by_maps, by_weight if needs_weight else None

    def mean(self, values: Tensor, border: Border) -> Tensor:
        r"""Mean of ``(N, *space)`` over every window: Γ_tt from Ω_tt (appendix B.3).

        ``border="zero"`` divides by all D places, those outside the image counting as zero, as the
        paper's Γ does; ``"inside"`` divides by the places inside, as the published runs did.
        """
        inside = border == "inside"
        if _is_small(values):
            return self._reduced(values, "inside" if inside else "mean")
        pads = tuple(before for before, _ in self.padding)
        pools = (
            self.is_symmetric
            and set(self.dilation) == {1}
            and all(2 * pad <= size for pad, size in zip(pads, self.size, strict=True))
            and all(s >= size for s, size in zip(values.shape[1:], self.size, strict=False))
        )
        if pools:
            self.require_space(values.shape[1:])
            pool = _AVERAGES[self.ndim]
            return pool(values, self.size, self.stride, pads, False, not inside)
        counts = self.counts(values.shape[1:], values).clamp(min=1) if inside else self.count
        return self.sum(values) / counts

    def sum(self, values: Tensor) -> Tensor:
        """Sum of ``(N, *space)`` over every window; zero outside the image."""
        if _is_small(values):
            return self._reduced(values, "sum")
        weight = values.new_ones(1, 1, *self.size)
        return self.convolve(values.unsqueeze(1), weight).squeeze(1)

    def counts(self, space: Sequence[int], like: Tensor) -> Tensor:
        """How many places of each window lie inside the image, shape ``(1, *output_space)``."""
        return self.sum(like.new_ones(1, *space))

    def _reduced(self, values: Tensor, kind: Reduction) -> Tensor:
        """Sums or means over windows: a product with a matrix for all axes, or for each."""
        space = tuple(values.shape[1:])
        self.require_space(space)
        place = (values.dtype, values.device)
        with without_autocast(values):
            if math.prod(space) <= FEW_PLACES:
                output = self.output_space(space)
                matrix = _along_all(self, space, kind, *place)
                return (values.flatten(1) @ matrix.T).reshape(-1, *output)
            for axis, length in enumerate(space):
                matrix = _along_axis(self, axis, length, kind, *place)
                if axis == self.ndim - 1:
                    values = values @ matrix.T
                elif axis == self.ndim - 2:
                    values = matrix @ values
                else:
                    values = (values.movedim(axis + 1, -1) @ matrix.T).movedim(-1, axis + 1)
        return values

    def patches(self, maps: Tensor, images: Tensor, places: Tensor) -> Tensor:
        """The window's content ``(M, P, *size)`` at M positions on maps ``(N, P, *space)``.

        A position is an image and a flat index into ``output_space``, both ``(M,)``. Places outside
        the image are zero.
        """
        padded = self.pad(maps)
        output = self.output_space(maps.shape[2:])
        corner = torch.unravel_index(places, output)
        column = (-1, *(1,) * self.ndim)
        offsets = torch.meshgrid(
            *(torch.arange(size, device=maps.device) for size in self.size), indexing="ij"
        )
        index = [
            start.reshape(column) * stride + dilation * offset
            for start, stride, dilation, offset in zip(
                corner, self.stride, self.dilation, offsets, strict=True
            )
        ]
        return padded.movedim(1, -1)[(images.reshape(column), *index)].movedim(-1, 1)

    def __str__(self) -> str:
        parts = [f"kernel_size={self.size}"]
        if set(self.stride) != {1}:
            parts.append(f"stride={self.stride}")
        if set(self.dilation) != {1}:
            parts.append(f"dilation={self.dilation}")
        if any(map(any, self.padding)):
            zeros = tuple(a for a, _ in self.padding) if self.is_symmetric else self.padding
            parts.append(f"padding={zeros}")
        return ", ".join(parts)


def _is_small(values: Tensor) -> bool:
    """Whether sums over windows are products; not in exported programs, which know pooling."""
    return not torch.compiler.is_compiling() and max(values.shape[1:], default=0) <= LARGEST_GRID


@lru_cache(maxsize=256)
def _along_axis(  # noqa: PLR0917
    window: Window,
    axis: int,
    length: int,
    kind: Reduction,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """The matrix ``(outgoing, incoming)`` that sums or averages over windows along one axis."""
    before, size = window.padding[axis][0], window.size[axis]
    stride, dilation = window.stride[axis], window.dilation[axis]
    count = window.positions(axis, length)
    with torch.inference_mode(False):
        matrix = torch.zeros(count, length, dtype=torch.float64)
        for place in range(count):
            inside = [place * stride + dilation * step - before for step in range(size)]
            inside = [index for index in inside if 0 <= index < length]
            divisor = {"sum": 1, "mean": size, "inside": max(1, len(inside))}[kind]
            matrix[place, inside] = 1 / divisor
        return matrix.to(device, dtype)


@lru_cache(maxsize=256)
def _along_all(
    window: Window,
    space: tuple[int, ...],
    kind: Reduction,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """The same over all axes: the Kronecker product of their matrices."""
    with torch.inference_mode(False):
        result = torch.ones(1, 1, dtype=dtype, device=device)
        for axis, length in enumerate(space):
            result = torch.kron(result, _along_axis(window, axis, length, kind, dtype, device))
        return result

r"""Covariances between all places of all images: what the sparse machine never stores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from convdkm.errors import GramError, InvalidInputError
from convdkm.kernels import Linear

if TYPE_CHECKING:
    from typing_extensions import Self

    from convdkm.exact.layers import LearnedGram
    from convdkm.kernels import Kernel
    from convdkm.layers import GramLayer, Window
    from convdkm.ops.window import Reduction


@dataclass(frozen=True, eq=False)
class SpatialGram:
    r"""The full covariance :math:`G_{ir,js}` between two sets of images (Eq. 10 to 13).

    Attributes:
        cross: between place r of left image i and place s of right image j,
            ``(N1, N2, *space, *space)``, indexed by i, j, r, s.
        left: among the places of each left image, ``(N1, *space, *space)``.
        right: among the places of each right image, ``(N2, *space, *space)``.
        same: both sides are the same images, so that ``cross[i, i]`` is ``left[i]``.
        ntk: the neural tangent kernel :math:`\Theta_{ir,js}` beside ``cross``, in its shape; None
            where it is not asked for. Every operation below says what becomes of it.
        gaussian: whether features are known to be Gaussian with mean zero: sums over many random
            weights, as those that leave a convolution or a dense layer are.

    Kernels need the variances of both sides, and the variance of an average over places needs the
    covariance of every two of them: with all three blocks, every operation below is exact and has
    all it needs. ``space`` is ``()`` for vectors, and once space has been collapsed.
    """

    cross: Tensor
    left: Tensor
    right: Tensor
    same: bool = False
    ntk: Tensor | None = None
    gaussian: bool = False

    def __post_init__(self) -> None:
        shape = tuple(self.cross.shape)
        space = shape[2 : 2 + (len(shape) - 2) // 2]
        if len(shape) < 2 or shape[2:] != (*space, *space):
            raise GramError(
                f"SpatialGram.cross must have shape (N1, N2, *space, *space), got {shape}"
            )
        for name, count in (("left", shape[0]), ("right", shape[1])):
            block = getattr(self, name)
            if tuple(block.shape) != (count, *space, *space):
                raise GramError(
                    f"SpatialGram.{name} must have shape {(count, *space, *space)} as in"
                    f" SpatialGram.cross, got {tuple(block.shape)}"
                )
            if block.dtype != self.cross.dtype:
                raise GramError(
                    f"SpatialGram.{name} must have the dtype of SpatialGram.cross,"
                    f" {self.cross.dtype}; got {block.dtype}"
                )
        if self.ntk is not None and (self.ntk.shape, self.ntk.dtype) != (shape, self.cross.dtype):
            raise GramError(
                f"SpatialGram.ntk must be as SpatialGram.cross, {shape} of {self.cross.dtype}; got"
                f" {tuple(self.ntk.shape)} of {self.ntk.dtype}"
            )
        if self.same and shape[0] != shape[1]:
            raise GramError(f"{shape[0]} and {shape[1]} images cannot be the same ones")

    @classmethod
    def of_images(cls, images: Tensor, others: Tensor | None = None) -> Self:
        r"""The Gram of pixels, :math:`\tfrac1C \sum_c x_{ir,c}\, x'_{js,c}` (Eq. 10).

        Args:
            images: ``(N1, C, *space)``.
            others: ``(N2, C, *space)``; the same images if not given.
        """
        left, right = images, images if others is None else others
        if left.ndim < 2 or left.shape[1:] != right.shape[1:]:
            raise InvalidInputError(
                "images must have shape (N, C, *space), the same C and space on both sides; got"
                f" {tuple(left.shape)} and {tuple(right.shape)}"
            )
        channels, space = left.shape[1], left.shape[2:]
        places = math.prod(space)
        flat = left.reshape(len(left), channels, places)
        other = right.reshape(len(right), channels, places)
        cross = torch.einsum("icr,jcs->ijrs", flat, other) / channels
        inside = [(block.mT @ block / channels) for block in (flat, other)]
        return cls(
            cross.reshape(len(left), len(right), *space, *space),
            inside[0].reshape(len(left), *space, *space),
            inside[1].reshape(len(right), *space, *space),
            same=others is None,
        )

    # -- reading -------------------------------------------------------------------------------

    @property
    def space(self) -> tuple[int, ...]:
        """Shape of the grid of places of one image."""
        return tuple(self.cross.shape[2 : 2 + (self.cross.ndim - 2) // 2])

    @property
    def left_variances(self) -> Tensor:
        """Variance of every place of the left images, ``(N1, *space)``."""
        return _variances(self.left)

    @property
    def right_variances(self) -> Tensor:
        """Variance of every place of the right images, ``(N2, *space)``."""
        return _variances(self.right)

    def with_ntk(self) -> SpatialGram:
        """The same with an NTK of zero beside it: no weights have been met yet."""
        return replace(self, ntk=torch.zeros_like(self.cross))

    def matrix(self) -> Tensor:
        """``cross`` with one row for each place of each left image, ``(N1·S, N2·S)``."""
        left, right = self.cross.shape[:2]
        places = math.prod(self.space)
        blocks = self.cross.reshape(left, right, places, places)
        return blocks.transpose(1, 2).reshape(left * places, right * places)

    def blocks(self, matrix: Tensor) -> Tensor:
        """A matrix as that of :meth:`matrix`, in the shape of ``cross``."""
        left, right = self.cross.shape[:2]
        places = math.prod(self.space)
        blocks = matrix.reshape(left, places, right, places).transpose(1, 2)
        return blocks.reshape(self.cross.shape)

    # -- operations ----------------------------------------------------------------------------

    def apply(self, kernel: Kernel) -> SpatialGram:
        r"""A kernel of every entry; that of a point with itself by :meth:`Kernel.variance`.

        The NTK is multiplied by the kernel's derivative (:meth:`Kernel.tangent`):

        .. math:: \Theta_{ir,js} \leftarrow \Theta_{ir,js}\,
                  \frac{\partial k}{\partial G_{ir,js}}
        """
        ones = (1,) * len(self.space)
        left, right = self.left_variances, self.right_variances
        rows = left.reshape(len(left), 1, *self.space, *ones)
        columns = right.reshape(1, len(right), *ones, *self.space)
        cross = kernel.of(self.cross, rows, columns)
        ntk = None if self.ntk is None else self.ntk * self._tangent(kernel, rows, columns)

        def inside(block: Tensor) -> Tensor:
            own = _variances(block)
            rows = own.reshape(len(own), *self.space, *ones)
            columns = own.reshape(len(own), *ones, *self.space)
            return _with_variances(kernel.of(block, rows, columns), kernel.variance(own))

        made = self._tied(cross, inside(self.left), inside(self.right))
        return replace(made, ntk=ntk, gaussian=self.gaussian and isinstance(kernel, Linear))

    def _tangent(self, kernel: Kernel, rows: Tensor, columns: Tensor) -> Tensor:
        name = type(kernel).__name__
        if not self.gaussian and not isinstance(kernel, Linear):
            raise GramError(
                f"an NTK needs to know the weights that are trained, and there are none before"
                f" {name}, whose kernel is that of Gaussian features; put a Convolution or a Dense"
                " layer before it"
            )
        tangent = kernel.tangent(self.cross, rows, columns)
        if not bool(tangent.isfinite().all()):
            raise GramError(
                f"the derivative of {name} by the covariance is not finite for some pairs of"
                f" points, so that there is no NTK; define tangent(cross, left, right) of {name}"
            )
        return tangent

    def convolve(
        self, window: Window, weight: float = 1.0, bias: float = 0.0, *, circular: bool = False
    ) -> SpatialGram:
        """The kernelised convolution of Eq. 11; see :class:`convdkm.exact.Convolution`.

        With ``circular`` the image goes on at its other side, where the window's padding is.
        """
        window.require_space(self.space)
        ndim = window.ndim

        def convolved(block: Tensor) -> Tensor:
            for axis in range(ndim):
                dims = (1 + axis, 1 + ndim + axis)
                block = _window_sum(block, dims, window, axis, circular=circular)
            return block / (window.count / weight)

        return self._mapped(convolved)._trained(bias)

    def dense(self, weight: float = 1.0, bias: float = 0.0) -> SpatialGram:
        """Weights at every place alone; see :class:`convdkm.exact.Dense`."""
        return self._mapped(lambda block: weight * block)._trained(bias)

    def average_pool(self, window: Window, *, inside: bool = True) -> SpatialGram:
        """:meth:`pool` by the mean of places in the image; with ``inside=False``, of the window."""
        return self.pool(window, "inside" if inside else "mean")

    def pool(
        self, window: Window, reduction: Reduction = "mean", *, circular: bool = False
    ) -> SpatialGram:
        """Pooling over a window on both sides, of G and of Θ; see :class:`convdkm.exact.Pooling`.

        With ``circular`` the image goes on at its other side, where the window's padding is.
        """
        window.require_space(self.space)
        ndim, space = window.ndim, self.space

        def divisors(axis: int, like: Tensor) -> Tensor:
            inside = like.new_ones(space[axis])
            counts = _window_sum(inside, (0,), window, axis, circular=circular)
            if reduction == "inside":
                return counts
            return torch.full_like(counts, window.size[axis] if reduction == "mean" else 1)

        def pooled(block: Tensor) -> Tensor:
            for axis in range(ndim):
                counts = divisors(axis, block)
                for dim in (1 + axis, 1 + ndim + axis):
                    shape = [1] * block.ndim
                    shape[dim] = -1
                    block = _window_sum(block, (dim,), window, axis, circular=circular)
                    block = block / counts.reshape(shape)
            return block

        return self._mapped(pooled)

    def global_average_pool(self) -> SpatialGram:
        r"""Global average pooling, :math:`\tfrac1{S^2} \sum_{rs} G_{ir,js}` (appendix E.3)."""
        self._require_space()
        return self._mapped(lambda block: block.flatten(1).mean(1))

    def global_sum_pool(self) -> SpatialGram:
        r"""Global sum pooling, :math:`\sum_{rs} G_{ir,js}`."""
        self._require_space()
        return self._mapped(lambda block: block.flatten(1).sum(1))

    def flatten(self) -> SpatialGram:
        r"""The linear top layer, :math:`\tfrac1S \sum_s G_{is,js}` (appendix E.1)."""
        self._require_space()
        flat = self._mapped(lambda block: _variances(block).flatten(1).mean(1))
        return replace(flat, gaussian=False)  # variances differ between places

    def combine(self, other: SpatialGram, weight: float | Tensor = 0.5) -> SpatialGram:
        r"""Convex combination :math:`(1 - w)\,G + w\,G'`, the kernel form of a skip connection."""
        self._require_same_places(other)
        if isinstance(weight, Tensor):
            weight = weight.to(self.cross.dtype)
        elif not 0 <= weight <= 1:
            raise GramError(f"the weight of a convex combination lies in [0, 1], got {weight}")
        return self._joined(other, lambda one, two: (1 - weight) * one + weight * two)

    def plus(self, other: SpatialGram) -> SpatialGram:
        """The sum G + G′: that of a sum of features, which are independent and of mean zero."""
        self._require_same_places(other)
        for gram in (self, other):
            gram.require_gaussian("the kernel of a sum of features is the sum of kernels")
        return self._joined(other, torch.add)

    def rescale(self, factor: Callable[[Tensor], Tensor]) -> SpatialGram:
        """Multiply the features of every place by a number: ``G_ir,js ← f_ir f_js G_ir,js``.

        The numbers do not change with the weights, so that the NTK is multiplied likewise.

        Args:
            factor: from variances ``(N, *space)`` to f, of the same shape.
        """
        ones = (1,) * len(self.space)
        left, right = factor(self.left_variances), factor(self.right_variances)

        def inside(block: Tensor, own: Tensor) -> Tensor:
            rows = own.reshape(len(own), *self.space, *ones)
            return block * rows * own.reshape(len(own), *ones, *self.space)

        rows = left.reshape(len(left), 1, *self.space, *ones)
        columns = right.reshape(1, len(right), *ones, *self.space)
        cross = self.cross * rows * columns
        made = self._tied(cross, inside(self.left, left), inside(self.right, right))
        return made if self.ntk is None else replace(made, ntk=self.ntk * rows * columns)

    def learned(self, layer: GramLayer | LearnedGram) -> SpatialGram:
        """What a Gram layer does: nothing where ν is infinite, and else it needs a machine."""
        if not layer.is_nngp:
            raise InvalidInputError(
                f"a Gram layer with nu={layer.nu:g} learns its Gram; the exact kernel is that of"
                " nu=inf, and FullRankDKM learns Grams of all training images"
            )
        return self

    def with_variances(self, change: Callable[[Tensor], Tensor]) -> SpatialGram:
        """Change the variance of every place, and no covariance: noise of each place's own.

        No weight is trained in it; the NTK stays.

        Args:
            change: from variances ``(N, *space)`` to new ones.
        """
        left, right = (
            _with_variances(block, change(_variances(block))) for block in (self.left, self.right)
        )
        return self._tied(self.cross, left, right)

    # -- internals -----------------------------------------------------------------------------

    def _mapped(self, linear: Callable[[Tensor], Tensor]) -> SpatialGram:
        """A linear map of ``(pairs, *space, *space)`` applied to all blocks."""

        def between(block: Tensor) -> Tensor:
            return linear(block.flatten(0, 1)).unflatten(0, block.shape[:2])

        return replace(
            self,
            cross=between(self.cross),
            left=linear(self.left),
            right=linear(self.right),
            ntk=None if self.ntk is None else between(self.ntk),
        )

    def _trained(self, bias: float) -> SpatialGram:
        """What a layer of weights does after its linear map: its bias, and its own NTK."""
        blocks = self.cross, self.left, self.right
        cross, left, right = (block + bias for block in blocks) if bias else blocks
        ntk = None if self.ntk is None else self.ntk + cross
        return replace(self, cross=cross, left=left, right=right, ntk=ntk, gaussian=True)

    def _joined(self, other: SpatialGram, join: Callable[[Tensor, Tensor], Tensor]) -> SpatialGram:
        """Blocks of two Grams joined; the NTK where both have one."""
        tangents = self.ntk is not None and other.ntk is not None
        return replace(
            self,
            cross=join(self.cross, other.cross),
            left=join(self.left, other.left),
            right=join(self.right, other.right),
            ntk=join(self.ntk, other.ntk) if tangents else None,  # type: ignore[arg-type]
            gaussian=self.gaussian and other.gaussian,
        )

    def _tied(self, cross: Tensor, left: Tensor, right: Tensor) -> SpatialGram:
        if self.same:
            cross = torch.diagonal_scatter(cross, left.movedim(0, -1), dim1=0, dim2=1)
        return replace(self, cross=cross, left=left, right=right)

    def require_gaussian(self, why: str) -> None:
        """Raise unless features are Gaussian with mean zero.

        Args:
            why: what else would not be right.
        """
        if not self.gaussian:
            raise GramError(
                f"{why} only where features are Gaussian with mean zero, as they are after a"
                " Convolution or a Dense layer; these are the images themselves, or what a kernel"
                " or Flatten made"
            )

    def _require_same_places(self, other: SpatialGram) -> None:
        if self.cross.shape != other.cross.shape or self.same != other.same:
            raise GramError(
                "two Grams can be combined if they are of the same images and places; got shapes"
                f" {tuple(self.cross.shape)} and {tuple(other.cross.shape)}"
            )

    def _require_space(self) -> None:
        if not self.space:
            raise GramError("there is no space left to collapse in this Gram")

    def __repr__(self) -> str:
        return (
            f"SpatialGram(left={len(self.left)}, right={len(self.right)}, space={self.space},"
            f" same={self.same}, dtype={self.cross.dtype})"
        )


def _squares(block: Tensor) -> Tensor:
    """``(N, *space, *space)`` as ``(N, S, S)``."""
    places = math.prod(block.shape[1 : 1 + (block.ndim - 1) // 2])
    return block.reshape(len(block), places, places)


def _variances(block: Tensor) -> Tensor:
    """The diagonal in space of ``(N, *space, *space)``: ``(N, *space)``."""
    space = block.shape[1 : 1 + (block.ndim - 1) // 2]
    return _squares(block).diagonal(dim1=1, dim2=2).reshape(len(block), *space)


def _with_variances(block: Tensor, variances: Tensor) -> Tensor:
    squares = _squares(block)
    flat = variances.reshape(squares.shape[:2])
    return torch.diagonal_scatter(squares, flat, dim1=1, dim2=2).reshape(block.shape)


def _window_sum(
    block: Tensor, dims: tuple[int, ...], window: Window, axis: int, *, circular: bool = False
) -> Tensor:
    """Sum over the window along one axis of space, moving along all ``dims`` at once."""
    size, stride, dilation = window.size[axis], window.stride[axis], window.dilation[axis]
    before, after = window.padding[axis]
    for dim in dims:
        if circular:
            length = block.shape[dim]
            places = torch.arange(-before, length + after, device=block.device) % length
            block = block.index_select(dim, places)
        else:
            block = F.pad(block, [0, 0] * (block.ndim - 1 - dim) + [before, after])
    reach = block.shape[dims[0]] - dilation * (size - 1)
    total: Tensor | None = None
    for start in range(0, dilation * size, dilation):
        index = [slice(None)] * block.ndim
        for dim in dims:
            index[dim] = slice(start, start + reach, stride)
        part = block[tuple(index)]
        total = part if total is None else total + part
    assert total is not None
    return total

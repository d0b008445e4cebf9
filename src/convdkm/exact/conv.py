r"""The exact kernels of a stack of layers, NNGP and NTK, on vectors or on whole images."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn

from convdkm.errors import GramError, InvalidInputError, located
from convdkm.exact.layers import ExactLayer, Residual
from convdkm.exact.spatial import SpatialGram
from convdkm.kernels import Kernel
from convdkm.layers import (
    AveragePool,
    Conv,
    Flatten,
    GlobalAveragePool,
    GramLayer,
    Mix,
    Noise,
    Norm,
    PatchInput,
    Sequential,
    Skip,
    VectorInput,
)
from convdkm.model import DeepKernelMachine, in_mode

BLOCK_ENTRIES = 2**24
"""Entries of the largest array, where :class:`ExactKernel` chooses the size of its blocks."""

Values = Callable[[Tensor, Tensor | None], Tensor]
"""A block of a kernel matrix between images and others, or the same images."""


@singledispatch
def propagate(layer: nn.Module, gram: SpatialGram) -> SpatialGram:
    """What a layer does to the full covariance; its exact counterpart.

    A layer of one's own takes part by ``@propagate.register``.
    """
    del gram
    raise InvalidInputError(
        f"{type(layer).__name__} has no exact counterpart: it depends on inducing points or on the"
        " batch; register one with @convdkm.exact.propagate.register"
    )


@propagate.register
def _(layer: DeepKernelMachine, gram: SpatialGram) -> SpatialGram:
    with located("input"):
        gram = propagate(layer.input, gram)
    with located("body"):
        return propagate(layer.body, gram)


@propagate.register
def _(layer: Sequential, gram: SpatialGram) -> SpatialGram:
    for name, part in layer.named_layers():
        with located(name):
            gram = propagate(part, gram)
    return gram


@propagate.register
def _(layer: Skip, gram: SpatialGram) -> SpatialGram:
    with located("body"):
        body = propagate(layer.body, gram)
    with located("shortcut"):
        short = gram if layer.shortcut is None else propagate(layer.shortcut, gram)
        return short.combine(body, layer.weight)


@propagate.register
def _(layer: Residual, gram: SpatialGram) -> SpatialGram:
    sums = [gram] if len(layer.branches) == 1 else []
    for index, branch in enumerate(layer.branches):
        with located(f"branches.{index}"):
            sums.append(propagate(branch, gram))
    return functools.reduce(SpatialGram.plus, sums)


@propagate.register(Conv)
@propagate.register(PatchInput)
def _(layer: Conv | PatchInput, gram: SpatialGram) -> SpatialGram:
    if layer.border != "zero" and any(any(pads) for pads in layer.window.padding):
        raise InvalidInputError(
            f"border={layer.border!r} changes the variances at the border but not the covariances,"
            " so that there is no exact kernel; use border='zero'"
        )
    return gram.convolve(layer.window)


@propagate.register
def _(layer: VectorInput, gram: SpatialGram) -> SpatialGram:
    if layer.log_scales is not None:
        raise InvalidInputError(
            "this input has learned a scale for every feature, which an exact kernel does not"
            " apply; multiply the vectors by input.log_scales.exp(), and use the layers without"
            " their input"
        )
    return gram


@propagate.register
def _(layer: Norm, gram: SpatialGram) -> SpatialGram:
    if layer.data in ("batch", "location") and layer.statistics == "batch":
        raise InvalidInputError(
            "normalisation by the statistics of the batch at hand is not a kernel; use"
            " statistics='running'"
        )

    def factor(variances: Tensor) -> Tensor:
        scale = layer.data_factor(variances)
        return torch.ones_like(variances) if scale is None else scale

    return gram.rescale(factor)


OPERATIONS: dict[type[nn.Module], Callable[[Any, SpatialGram], SpatialGram]] = {
    AveragePool: lambda layer, gram: gram.average_pool(layer.window),
    ExactLayer: lambda layer, gram: layer.of_gram(gram),
    Flatten: lambda _, gram: gram.flatten(),
    GlobalAveragePool: lambda _, gram: gram.global_average_pool(),
    GramLayer: lambda layer, gram: gram.learned(layer),
    Kernel: lambda layer, gram: gram.apply(layer),
    Mix: lambda _, gram: gram,
    Noise: lambda layer, gram: gram.with_variances(
        lambda own: (1 + layer.relative) * own + layer.absolute
    ),
}
"""Layers that are one operation of :class:`SpatialGram`."""

for kind, operation in OPERATIONS.items():
    propagate.register(kind, operation)


class ExactKernel(nn.Module):
    r"""The exact kernel of a stack of layers, between whole images (Eq. 13) or vectors (Eq. 4).

    It is built of the library's own layers, with :class:`Convolution` for the convolutions:

    >>> import torch
    >>> import convdkm as dkm
    >>> from convdkm.exact import Convolution, ExactKernel
    >>> kernel = ExactKernel(
    ...     Convolution(3), dkm.ArcCosine(), Convolution(3, stride=2), dkm.GlobalAveragePool()
    ... )
    >>> kernel(torch.randn(4, 3, 8, 8), torch.randn(2, 3, 8, 8)).shape
    torch.Size([4, 2])

    or of a machine that was made for something else: ``ExactKernel(machine)`` is the NNGP of a
    :class:`DeepKernelMachine` whose ν is infinite, with any number of inducing points. Mixing
    weights and inducing inputs, which choose the approximation, play no part; normalisation uses
    its running statistics.

    :meth:`ntk` is the neural tangent kernel of the same layers.

    Memory grows as the square of the number of places S of an image: two blocks of B images take
    several arrays of B²S² numbers.

    Args:
        layers: in order; the last ones collapse space (:class:`GlobalAveragePool`,
            :class:`Flatten`), unless the data are vectors.
        dtype: precision of the computation.
    """

    def __init__(self, *layers: nn.Module, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        for layer in layers:
            if not isinstance(layer, nn.Module):
                raise InvalidInputError(f"ExactKernel takes layers, got a {type(layer).__name__}")
        self.layers = nn.ModuleList(layers)
        self.dtype = dtype

    def gram(
        self, images: Tensor, others: Tensor | None = None, *, ntk: bool = False
    ) -> SpatialGram:
        """The whole covariance, in one piece; space need not be collapsed.

        Args:
            images: ``(N1, C, *space)``, or vectors ``(N1, C)``.
            others: ``(N2, C, *space)``; the same images if not given.
            ntk: with the neural tangent kernel beside it, as :attr:`SpatialGram.ntk`.
        """
        self._check(images)
        if others is not None:
            self._check(others)
            others = others.to(self.dtype)
        start = SpatialGram.of_images(images.to(self.dtype), others)
        return self._propagate(start.with_ntk() if ntk else start)

    def forward(
        self, images: Tensor, others: Tensor | None = None, *, block: int | None = None
    ) -> Tensor:
        """The kernel matrix, ``(N1, N2)``.

        Args:
            images: ``(N1, C, *space)``, or vectors ``(N1, C)``.
            others: ``(N2, C, *space)``; the same images if not given.
            block: images a side to work on at a time; by default as many as keep the largest
                array below :data:`BLOCK_ENTRIES` entries.
        """
        return self._in_blocks(self._values, images, others, block)

    @torch.no_grad()
    def ntk(
        self, images: Tensor, others: Tensor | None = None, *, block: int | None = None
    ) -> Tensor:
        r"""The neural tangent kernel (Jacot et al., 2018), ``(N1, N2)``.

        .. math:: \Theta(x, x') = \sum_w \frac{\partial f(x)}{\partial w}
                                         \frac{\partial f(x')}{\partial w}

        over all weights and biases w of an infinitely wide network, each written as a standard
        normal number times its deviation. It follows the covariance G through the layers:

        .. math::
            \text{weights: } \Theta \leftarrow \sigma_w^2 A[\Theta] + G, \quad
                G \leftarrow \sigma_w^2 A[G] + \sigma_b^2; \qquad
            \text{a kernel: } \Theta \leftarrow \Theta\,\frac{\partial k}{\partial G},

        with A the linear map of a :class:`Convolution` (:class:`Conv` and :class:`PatchInput` have
        such weights too) and the identity for a :class:`Dense` layer, which stands wherever a
        network has one, before the output as well. Pooling, flattening, sums and normalisation do
        to Θ what they do to G. The variances of a kernel scale its features, and belong to no
        weight. The result carries no gradient.

        >>> import torch
        >>> import convdkm as dkm
        >>> from convdkm.exact import Dense, ExactKernel
        >>> kernel = ExactKernel(Dense(), dkm.ArcCosine(), Dense())
        >>> kernel.ntk(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        tensor([[1.0000, 0.1592],
                [0.1592, 1.0000]], dtype=torch.float64)

        Args:
            images, others, block: as in :meth:`forward`.

        Raises:
            GramError: a kernel does not follow weights, so that it is not that of a network.
        """
        return self._in_blocks(self._tangents, images, others, block)

    def variance(self, images: Tensor, *, block: int | None = None) -> Tensor:
        """The kernel of each image with itself, ``(N,)``."""
        self._check(images)
        parts = images.to(self.dtype).split(self._block(images, block) ** 2)
        grams = [self._propagate(SpatialGram.of_images(part, part[:0])) for part in parts]
        return torch.cat([self._collapsed(gram).left for gram in grams])

    def _in_blocks(
        self, values: Values, images: Tensor, others: Tensor | None, block: int | None
    ) -> Tensor:
        """A matrix, each block from images of two blocks; a symmetric one from half of them."""
        self._check(images)
        size = self._block(images, block)
        rows = columns = images.to(self.dtype).split(size)
        if others is not None:
            self._check(others)
            columns = others.to(self.dtype).split(size)
        blocks: list[list[Tensor]] = []
        for i, row in enumerate(rows):
            mirrored = [above[i].T for above in blocks] if others is None else []
            new = [
                values(row, None if others is None and i == j else column)
                for j, column in enumerate(columns)
                if j >= len(mirrored)
            ]
            blocks.append([*mirrored, *new])
        matrix = torch.cat([torch.cat(row, 1) for row in blocks])
        return 0.5 * (matrix + matrix.T) if others is None else matrix

    def _values(self, left: Tensor, right: Tensor | None) -> Tensor:
        return self._collapsed(self._propagate(SpatialGram.of_images(left, right))).cross

    def _tangents(self, left: Tensor, right: Tensor | None) -> Tensor:
        start = SpatialGram.of_images(left, right).with_ntk()
        ntk = self._collapsed(self._propagate(start)).ntk
        if ntk is None:
            raise GramError(
                "a layer registered with propagate made a SpatialGram without ntk; let it use the"
                " operations of SpatialGram, or dataclasses.replace(gram, ...)"
            )
        return ntk

    def _propagate(self, gram: SpatialGram) -> SpatialGram:
        with in_mode(self, training=False):
            for index, layer in enumerate(self.layers):
                with located(f"layers.{index}"):
                    gram = propagate(layer, gram)
        return gram

    def _collapsed(self, gram: SpatialGram) -> SpatialGram:
        if gram.space:
            raise GramError(
                f"the images still have places {gram.space} after the last layer; end with"
                " GlobalAveragePool() or Flatten(), or ask for the whole covariance by gram(...)"
            )
        return gram

    def _block(self, images: Tensor, block: int | None) -> int:
        if block is None:
            return max(1, int(BLOCK_ENTRIES**0.5 / math.prod(images.shape[2:])))
        if block < 1:
            raise InvalidInputError(f"block must be a positive integer, got {block}")
        return block

    def _check(self, images: Tensor) -> None:
        if not isinstance(images, Tensor) or not images.dtype.is_floating_point:
            kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise InvalidInputError(f"images must be a floating-point torch.Tensor, got {kind}")
        if images.ndim < 2 or 0 in images.shape:
            raise InvalidInputError(
                "images must have shape (N, C, *space) and hold something, got"
                f" {tuple(images.shape)}"
            )
        bad = int((~torch.isfinite(images)).sum())
        if bad:
            raise InvalidInputError(f"{bad} values of the images are NaN or infinite")

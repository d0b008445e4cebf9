r"""The exact kernel of a stack of layers: the NNGP, on vectors or on whole images."""

from __future__ import annotations

import math
from functools import singledispatch

import torch
from torch import Tensor, nn

from convdkm.errors import GramError, InvalidInputError, located
from convdkm.exact.spatial import SpatialGram
from convdkm.kernels import Kernel
from convdkm.layers import (
    AveragePool,
    Conv,
    Flatten,
    GlobalAveragePool,
    GramLayer,
    Layer,
    Mix,
    Noise,
    Norm,
    PatchInput,
    Plan,
    Sequential,
    Skip,
    VectorInput,
    Window,
)
from convdkm.model import DeepKernelMachine, in_mode
from convdkm.ops.window import Padding, Size

BLOCK_ENTRIES = 2**24
"""Entries of the largest array, where :class:`ExactKernel` chooses the size of its blocks."""


class Convolution(Layer):
    r"""The kernelised convolution Γ of Eq. 11 on whole images; :class:`Conv` is its sparse form.

    Args:
        kernel_size: size of the filter, an integer or one for each axis.
        stride, dilation: as in ``torch.nn.Conv2d``.
        padding: zeros around the image; ``"same"`` (default) or ``"valid"``, or integers.
        ndim: number of spatial axes, 1 to 3.
        weight_variance: :math:`\sigma_w^2`, what Γ is multiplied by: each weight has variance
            :math:`\sigma_w^2/(CD)`, of C channels and D places of the filter.
        bias_variance: :math:`\sigma_b^2`, what is added then.
    """

    def __init__(
        self,
        kernel_size: Size,
        *,
        stride: Size = 1,
        padding: Padding = "same",
        dilation: Size = 1,
        ndim: int = 2,
        weight_variance: float = 1.0,
        bias_variance: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0 < weight_variance < math.inf:
            raise InvalidInputError(
                f"the weight_variance of a convolution must be a positive number, got"
                f" {weight_variance}"
            )
        if not 0 <= bias_variance < math.inf:
            raise InvalidInputError(
                f"bias_variance of a convolution must not be negative, got {bias_variance}"
            )
        self.weight_variance, self.bias_variance = weight_variance, bias_variance
        self.window = Window.of(kernel_size, stride, padding, dilation, ndim)

    def plan(self, ii: Tensor) -> Plan:
        raise GramError(
            "Convolution is a layer of exact kernels and has no weights to make patches of"
            f" {len(ii)} inducing points; in a sparse machine use Conv"
        )

    def extra_repr(self) -> str:
        return str(self.window)


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
def _(layer: Kernel, gram: SpatialGram) -> SpatialGram:
    return gram.apply(layer)


@propagate.register
def _(layer: Convolution, gram: SpatialGram) -> SpatialGram:
    return gram.convolve(layer.window, layer.weight_variance, layer.bias_variance)


@propagate.register(Conv)
@propagate.register(PatchInput)
def _(layer: Conv | PatchInput, gram: SpatialGram) -> SpatialGram:
    if layer.border != "zero" and any(any(pads) for pads in layer.window.padding):
        raise InvalidInputError(
            f"border={layer.border!r} changes the variances at the border but not the covariances,"
            " so that there is no exact kernel; use border='zero'"
        )
    return gram.convolve(layer.window)


@propagate.register(VectorInput)
@propagate.register(Mix)
def _(layer: VectorInput | Mix, gram: SpatialGram) -> SpatialGram:
    del layer
    return gram


@propagate.register
def _(layer: GramLayer, gram: SpatialGram) -> SpatialGram:
    if not layer.is_nngp:
        raise InvalidInputError(
            f"a Gram layer with nu={layer.nu:g} learns its Gram of inducing points; the exact"
            " kernel is that of nu=inf"
        )
    return gram


@propagate.register
def _(layer: AveragePool, gram: SpatialGram) -> SpatialGram:
    return gram.average_pool(layer.window)


@propagate.register
def _(layer: GlobalAveragePool, gram: SpatialGram) -> SpatialGram:
    del layer
    return gram.global_average_pool()


@propagate.register
def _(layer: Flatten, gram: SpatialGram) -> SpatialGram:
    del layer
    return gram.flatten()


@propagate.register
def _(layer: Noise, gram: SpatialGram) -> SpatialGram:
    return gram.with_variances(lambda own: (1 + layer.relative) * own + layer.absolute)


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

    def gram(self, images: Tensor, others: Tensor | None = None) -> SpatialGram:
        """The whole covariance, in one piece; space need not be collapsed.

        Args:
            images: ``(N1, C, *space)``, or vectors ``(N1, C)``.
            others: ``(N2, C, *space)``; the same images if not given.
        """
        self._check(images)
        if others is not None:
            self._check(others)
            others = others.to(self.dtype)
        return self._propagate(SpatialGram.of_images(images.to(self.dtype), others))

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
        self._check(images)
        size = self._block(images, block)
        rows = images.to(self.dtype).split(size)
        if others is None:
            return self._symmetric(rows)
        self._check(others)
        columns = others.to(self.dtype).split(size)
        return torch.cat(
            [torch.cat([self._values(row, column) for column in columns], 1) for row in rows]
        )

    def variance(self, images: Tensor, *, block: int | None = None) -> Tensor:
        """The kernel of each image with itself, ``(N,)``."""
        self._check(images)
        parts = images.to(self.dtype).split(self._block(images, block) ** 2)
        grams = [self._propagate(SpatialGram.of_images(part, part[:0])) for part in parts]
        return torch.cat([self._collapsed(gram).left for gram in grams])

    def _symmetric(self, parts: tuple[Tensor, ...]) -> Tensor:
        count = len(parts)
        blocks: list[list[Tensor]] = [[] for _ in range(count)]
        for i in range(count):
            for j in range(count):
                if j < i:
                    value = blocks[j][i].T
                elif j > i:
                    value = self._values(parts[i], parts[j])
                else:
                    value = self._values(parts[i], None)
                    value = 0.5 * (value + value.T)
                blocks[i].append(value)
        return torch.cat([torch.cat(row, 1) for row in blocks])

    def _values(self, left: Tensor, right: Tensor | None) -> Tensor:
        return self._collapsed(self._propagate(SpatialGram.of_images(left, right))).cross

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

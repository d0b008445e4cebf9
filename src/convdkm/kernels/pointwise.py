r"""A kernel of every entry of a block, and the convolution after it.

Kernels say what they are for one entry, with their derivatives (:meth:`convdkm.Kernel.core`,
:meth:`convdkm.Kernel.partials`). Here this is done for whole blocks, in two ways that are one
operation each to autograd: of tensors that broadcast, and of a map that is convolved at once. Of
all that lies between the incoming Gram and the result, only the kernel's value is kept, for the
convolution; derivatives are worked out from the Gram when they are needed.

Maps are worked on as rows ``(pixels, P)``, either in pieces that stay in the processor's cache or
by functions that ``torch.compile`` makes, one for every kind of kernel and P.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from convdkm.kernels.blocks import Scratch, Side
from convdkm.ops.window import Window
from convdkm.runtime.compiled import compiled_for_rows, reason_of
from convdkm.runtime.maps import as_rows, from_rows, pieces, product_dtype, without_autocast

if TYPE_CHECKING:
    from convdkm.kernels.base import Kernel

_LOG = logging.getLogger(__name__)

PIECE = 1 << 17
"""Numbers in a piece of a map: few enough that a dozen passes over it stay in cache, and
enough that starting them costs little."""

BLOCK = 16
"""Rows whose sum compiled functions write in their place, where that over all rows is asked for."""

Module = TypeVar("Module", bound=nn.Module)
Blocks = tuple[Tensor, Tensor | None, Tensor]


# -- rows --------------------------------------------------------------------------------------


def value_of_rows(  # noqa: PLR0917
    kernel: Any,
    cross: Tensor,
    inducing: Side | None,
    pixels: Side,
    shift: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The core of a kernel, plus ``shift``, worked out in the precision of the variances.

    Args:
        kernel: the kernel.
        cross: ``(rows, P)``.
        inducing: ``(P,)``; None for norms of one, see :attr:`convdkm.Kernel.grows_with_norm`.
        pixels: ``(rows, 1)``.
        shift: a number, or ``(P,)``.
        dtype: of the result; that of the variances by default.
    """
    wide = pixels.variance.dtype
    dtype = wide if dtype is None else dtype
    made = _by_compiler(kernel, _value, cross, inducing, pixels, shift, dtype)
    if made is not None:
        found: Tensor = made
        return found
    value, scratch = torch.empty_like(cross, dtype=dtype), Scratch()
    for piece in pieces(cross, PIECE):
        part = (
            value[piece].copy_(cross[piece]) if dtype == wide else cross[piece].to(wide, copy=True)
        )
        kernel.core_(part, inducing, pixels.part(piece), scratch)
        if shift is not None:
            part.add_(shift)
        if dtype != wide:
            value[piece] = part
    return value


def gradient_of_rows(
    kernel: Kernel, grad: Tensor, cross: Tensor, inducing: Side, pixels: Side
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`value_of_rows` by ``cross`` and the two variances, from ``grad``."""
    shape = (-1, 1 if len(cross) % BLOCK else BLOCK)
    blocks = [each.unflatten(0, shape) for each in (grad, cross, *pixels)]
    made = _by_compiler(kernel, _gradient, *blocks[:2], inducing, Side(*blocks[2:]))
    if made is not None:
        by_cross, by_inducing, by_pixels = made
        return by_cross.flatten(0, 1), by_inducing.sum(0), by_pixels.flatten(0, 1)
    by_cross, by_pixels = torch.empty_like(cross), torch.empty_like(pixels.variance)
    by_inducing, wide = torch.zeros_like(inducing.variance), pixels.variance.dtype
    for piece in pieces(cross, PIECE):
        here = grad[piece].to(wide), cross[piece].to(wide)
        found = kernel.pulled(*here, inducing, pixels.part(piece))
        by_cross[piece], by_pixels[piece] = found[0], found[2]
        by_inducing.add_(found[1])
    return by_cross, by_inducing, by_pixels


def _value(  # noqa: PLR0917
    cross: Tensor,
    inducing: Side,
    pixels: Side,
    shift: Tensor | None,
    dtype: torch.dtype,
    kernel: Kernel,
) -> Tensor:
    value = kernel.core(cross.to(pixels.variance.dtype), inducing, pixels)
    return (value if shift is None else value + shift).to(dtype)


def _gradient(
    grad: Tensor, cross: Tensor, inducing: Side, pixels: Side, kernel: Kernel
) -> tuple[Tensor, Tensor, Tensor]:
    """Of rows in blocks, ``(blocks, rows, P)``; those by inducing points for each block."""
    wide = pixels.variance.dtype
    found, grad = kernel.partials(cross.to(wide), inducing, pixels), grad.to(wide)
    by_pixels = (grad * found.right).sum(-1, keepdim=True)
    return (grad * found.cross).to(cross.dtype), (grad * found.left).sum(1), by_pixels


_compiled = functools.cache(compiled_for_rows)


def _by_compiler(kernel: Kernel, function: Callable[..., Any], *blocks: Any) -> Any:
    """A function by its compiled form; None for kernels that are not to be compiled, or cannot."""
    if not kernel.compiled or blocks[0].is_meta:
        return None
    try:
        return _compiled(function)(*blocks, kernel)
    except Exception as error:  # the compiler's errors have no type in common
        kernel.compiled = False
        _LOG.warning("%s is not compiled: %s", type(kernel).__name__, reason_of(error))
        return None


def _held(module: Module) -> Module:
    """A kernel with the parameters of this moment, which ``functional_call`` may replace later."""
    held = copy.copy(module)
    held._parameters = dict(module._parameters)
    held._modules = {name: part and _held(part) for name, part in module._modules.items()}
    return held


def _by_parameters(
    kernel: Kernel, needed: Sequence[bool], grad: Tensor, cross: Tensor, *sides: Side
) -> Sequence[Tensor | None]:
    """Gradients by what the core learns, which is little, and seldom: by autograd."""
    if not any(needed):
        return [None] * len(needed)
    wide = sides[0].variance.dtype
    with torch.enable_grad():
        value = kernel.core(cross.detach().to(wide), *sides)
    return torch.autograd.grad(value, kernel.core_parameters(), grad.to(wide), allow_unused=True)


def differentiates(*tensors: Tensor | None) -> bool:
    """Whether there is a gradient by any of them to be worked out."""
    return torch.is_grad_enabled() and any(
        each is not None and each.requires_grad for each in tensors
    )


def value_of_map(  # noqa: PLR0917
    kernel: Any,
    cross: Tensor,
    inducing: Tensor | None,
    pixels: Tensor,
    shift: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """:func:`value_of_rows` of a map; by plain operations where a program is exported.

    Args:
        kernel: the kernel.
        cross: ``(N, P, *space)``.
        inducing: ``(P,)``; None for norms of one.
        pixels: ``(N, *space)``.
        shift: a number, or ``(P,)``.
        dtype: of the result; that of the variances by default.
    """
    if torch.compiler.is_compiling():
        column = (-1, *(1,) * (cross.ndim - 2))
        left = None if inducing is None else Side.of(inducing.reshape(column))
        value: Tensor = kernel.core(cross, left, Side.of(pixels.unsqueeze(1)))
        return value if shift is None else value + shift.reshape(column)
    left = None if inducing is None else Side.of(inducing)
    right = Side.of(pixels.reshape(-1, 1))
    rows = value_of_rows(kernel, as_rows(cross), left, right, shift, dtype)
    return from_rows(rows, cross.shape[0], cross.shape[2:])


# -- tensors that broadcast --------------------------------------------------------------------


def elementwise(kernel: Kernel, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The core of a kernel of three tensors that broadcast."""
    parameters = kernel.core_parameters()
    if differentiates(cross, left, right, *parameters):
        result: Tensor = _Elementwise.apply(kernel, cross, left, right, *parameters)
        return result
    return kernel.core(cross, Side.of(left), Side.of(right))


class _Elementwise(Function):
    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, cross: Tensor, left: Tensor, right: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.kernel = _held(kernel) if parameters else kernel
        ctx.save_for_backward(cross, left, right)
        return kernel.core(cross, Side.of(left), Side.of(right))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        cross, left, right = ctx.saved_tensors
        kernel, sides = ctx.kernel, (Side.of(left), Side.of(right))
        found = kernel.partials(cross, *sides)
        by = (
            (grad * partial).sum_to_size(tensor.shape)
            for partial, tensor in zip(found[1:], (cross, left, right), strict=True)
        )
        return None, *by, *_by_parameters(kernel, ctx.needs_input_grad[4:], grad, cross, *sides)


# -- maps that are convolved -------------------------------------------------------------------


def convolved(
    kernel: Kernel,
    window: Window,
    blocks: Blocks,
    weight: Tensor,
    shift: Tensor | None = None,
) -> Tensor:
    """Convolve the core of a kernel of a Gram's blocks, plus ``shift``, with ``weight``.

    Args:
        kernel: the kernel.
        window: the convolution's geometry, with as many zeros before an axis as after it.
        blocks: :math:`G_{it}`, ``(N, P, *space)``; the diagonal of :math:`G_{ii}`, ``(P,)``, or
            None for norms of one where nothing is differentiated; and :math:`g_{tt}`,
            ``(N, *space)``.
        weight: ``(Q, P, *size)``.
        shift: a number, or ``(P,)`` where nothing is differentiated.
    """
    parameters, (cross, inducing, pixels) = kernel.core_parameters(), blocks
    if inducing is not None:
        if differentiates(*blocks, weight, shift, *parameters):
            result: Tensor = _Convolved.apply(kernel, window, *blocks, weight, shift, *parameters)
            return result
        inducing = inducing.to(pixels.dtype)
    maps = value_of_map(kernel, cross, inducing, pixels, shift, product_dtype(pixels))
    return _convolve(window, maps, weight)


def _convolve(window: Window, maps: Tensor, weight: Tensor) -> Tensor:
    with without_autocast(maps):
        return window.convolve(maps, weight.to(maps.dtype))


class _Convolved(Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        kernel: Kernel,
        window: Window,
        cross: Tensor,
        inducing: Tensor,
        pixels: Tensor,
        weight: Tensor,
        shift: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.kernel = _held(kernel) if parameters else kernel
        ctx.window, ctx.wide = window, inducing.dtype
        narrow = inducing.to(pixels.dtype)
        maps = value_of_map(kernel, cross, narrow, pixels, shift, product_dtype(pixels))
        ctx.save_for_backward(cross, narrow, pixels, weight, maps)
        return _convolve(window, maps, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        cross, narrow, pixels, weight, maps = ctx.saved_tensors
        needs = ctx.needs_input_grad
        by_maps, by_weight = ctx.window.convolve_backward(
            grad.to(maps.dtype), maps, weight.to(maps.dtype), needs[5]
        )
        by_rows, rows = as_rows(by_maps), as_rows(cross)
        sides = Side.of(narrow), Side.of(pixels.reshape(-1, 1))
        by_cross, by_inducing, by_pixels = gradient_of_rows(ctx.kernel, by_rows, rows, *sides)
        parameters = _by_parameters(ctx.kernel, needs[7:], by_rows, rows, *sides)
        return (
            None,
            None,
            from_rows(by_cross, cross.shape[0], cross.shape[2:]),
            by_inducing.to(ctx.wide),
            by_pixels.reshape(pixels.shape),
            None if by_weight is None else by_weight.to(weight.dtype),
            by_rows.sum() if needs[6] else None,
            *parameters,
        )

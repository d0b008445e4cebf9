r"""A kernel of every number of a map and the convolution after it, as one operation.

Of all that lies between the incoming Gram and the result of the convolution, only the kernel's
value is kept for the backward pass; its derivatives are worked out again from the Gram.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from convdkm.layers.window import Window
from convdkm.maps import as_rows, from_rows, product_dtype, without_autocast


class PointwiseGradient(NamedTuple):
    """Gradients by a kernel's arguments, and by its parameters."""

    cross: Tensor
    inducing: Tensor
    own: Tensor
    parameters: Sequence[Tensor | None]


class Pointwise(Protocol):
    """A kernel on maps given as rows, up to a factor that the convolution's weights take over.

    With ``cross`` (rows, P), ``inducing`` (P,) and ``own`` (rows, 1).

    Attributes:
        parameters: what it learns; None for what it does not have.
    """

    parameters: tuple[Tensor | None, ...]

    def value(self, cross: Tensor, inducing: Tensor, own: Tensor) -> Tensor:
        """The kernel, (rows, P)."""
        ...

    def gradient(
        self, grad: Tensor, value: Tensor, blocks: tuple[Tensor, Tensor, Tensor], *, learned: bool
    ) -> PointwiseGradient:
        """Gradients from that by the kernel.

        Args:
            grad: gradient by the kernel.
            value: the kernel.
            blocks: ``cross``, ``inducing`` and ``own``.
            learned: whether gradients by the parameters are asked for.
        """
        ...


def pointwise_convolution(
    pointwise: Pointwise,
    cross: Tensor,
    inducing: Tensor,
    own: Tensor,
    weight: Tensor,
    *,
    window: Window,
) -> Tensor:
    """Convolve a kernel of a Gram's blocks with ``weight``.

    Args:
        pointwise: the kernel.
        cross: :math:`G_{it}`, ``(N, P, *space)``.
        inducing: the diagonal of :math:`G_{ii}`, ``(P,)``.
        own: :math:`g_{tt}`, ``(N, *space)``.
        weight: ``(Q, P, *size)``.
        window: the convolution's geometry, with as many zeros before an axis as after it.
    """
    result: Tensor = _PointwiseConvolution.apply(
        cross, inducing, own, weight, window, pointwise, *pointwise.parameters
    )
    return result


class _PointwiseConvolution(Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        cross: Tensor,
        inducing: Tensor,
        own: Tensor,
        weight: Tensor,
        window: Window,
        pointwise: Pointwise,
        *parameters: Tensor | None,
    ) -> Tensor:
        ctx.window, ctx.pointwise, ctx.dtype = window, pointwise, product_dtype(cross)
        ctx.wide = inducing.dtype
        narrow = inducing.to(cross.dtype)
        rows = pointwise.value(as_rows(cross), narrow, own.reshape(-1, 1))
        maps = from_rows(rows, cross.shape[0], cross.shape[2:])
        ctx.save_for_backward(cross, narrow, own, weight, maps)
        with without_autocast(cross):
            return window.convolve(maps.to(ctx.dtype), weight.to(ctx.dtype)).to(cross.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        cross, narrow, own, weight, maps = ctx.saved_tensors
        dtype = ctx.dtype
        by_maps, by_weight = ctx.window.convolve_backward(
            grad.to(dtype), maps.to(dtype), weight.to(dtype), ctx.needs_input_grad[3]
        )
        needed = ctx.needs_input_grad[6:]
        found = ctx.pointwise.gradient(
            as_rows(by_maps.to(cross.dtype)),
            as_rows(maps),
            (as_rows(cross), narrow, own.reshape(-1, 1)),
            learned=any(needed),
        )
        return (
            from_rows(found.cross, cross.shape[0], cross.shape[2:]),
            found.inducing.to(ctx.wide),
            found.own.reshape(own.shape),
            None if by_weight is None else by_weight.to(weight.dtype),
            None,
            None,
            *(
                each if needs else None
                for each, needs in zip(found.parameters, needed, strict=True)
            ),
        )

r"""Kernels computed from a Gram matrix alone (Eq. 2 to 4).

A kernel here is a function of three numbers: :math:`k(x, y)` from :math:`G_{xy}`, :math:`G_{xx}`
and :math:`G_{yy}`. It is applied to every entry of every block, and knows nothing of space.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from convdkm.checks import check_positive_number
from convdkm.errors import InvalidInputError
from convdkm.gram import INDUCING_DTYPE
from convdkm.kernels.blocks import Partials, Scratch, Side
from convdkm.kernels.pointwise import (
    Blocks,
    convolved,
    differentiates,
    elementwise,
    value_of_map,
)
from convdkm.layers.base import Layer, keeps
from convdkm.ops.base import Plan
from convdkm.ops.kernel import KernelPlan
from convdkm.ops.window import Window


class Kernel(Layer):
    """Base class of kernels: define :meth:`of` and :meth:`variance`.

    Kernels add, multiply, and are scaled by numbers: ``0.5 * ArcCosine() + Linear()``. One that is
    a function of the cosine or of the distance alone is better derived from
    :class:`convdkm.Angular` or :class:`convdkm.Isotropic`, which do the rest.

    Attributes:
        compiled: see :meth:`convdkm.DeepKernelMachine.compile_elementwise`.
    """

    compiled: bool = False

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """``k(x, y)`` from ``cross = G_xy``, ``left = G_xx`` and ``right = G_yy`` (broadcast)."""
        raise NotImplementedError(f"{type(self).__name__} must define of(cross, left, right)")

    def variance(self, own: Tensor) -> Tensor:
        """``k(x, x)`` from ``own = G_xx``."""
        raise NotImplementedError(f"{type(self).__name__} must define variance(own)")

    def plan(self, ii: Tensor) -> Plan:
        return KernelPlan(self, ii, joins=self.is_written_out)

    @property
    def is_written_out(self) -> bool:
        """Whether :meth:`core` and :meth:`partials` say what :meth:`of` does.

        Such a kernel is worked out piece by piece or by compiled functions, together with the
        convolution after it.
        """
        return False

    def core(self, cross: Tensor, left: Side, right: Side) -> Tensor:
        """The kernel, but for :meth:`factors`."""
        raise NotImplementedError(f"{type(self).__name__} must define core(cross, left, right)")

    def core_(self, cross: Tensor, left: Side, right: Side, scratch: Scratch) -> Tensor:
        """The core, written over ``cross``, which has the shape of all three together."""
        del scratch
        return cross.copy_(self.core(cross, left, right))

    def partials(self, cross: Tensor, left: Side, right: Side) -> Partials:
        """The core with its derivatives by the three numbers, finite everywhere."""
        raise NotImplementedError(f"{type(self).__name__} must define partials(cross, left, right)")

    def pulled(
        self, grad: Tensor, cross: Tensor, left: Side, right: Side
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of rows from that by their core.

        Args:
            grad, cross: ``(rows, P)``.
            left, right: of ``(P,)`` and of ``(rows, 1)``, whose gradients are sums.
        """
        found = self.partials(cross, left, right)
        by_left, by_right = (found.left * grad).sum(0), (found.right * grad).sum(1, keepdim=True)
        return found.cross * grad, by_left, by_right

    def factors(self) -> tuple[Positive | None, Positive | None]:
        """What the core is multiplied by, and what is added then; None for one and for zero."""
        return None, None

    def core_parameters(self) -> list[nn.Parameter]:
        """What the core learns."""
        apart = {id(p) for each in self.factors() if each is not None for p in each.parameters()}
        return [each for each in self.parameters() if id(each) not in apart]

    def scaled(self, value: Tensor, *, shifted: bool = True) -> Tensor:
        """The kernel from its core, or what becomes of the core's derivatives."""
        slope, offset = self.factors()
        value = value if slope is None else slope(value) * value
        return value + offset(value) if shifted and offset is not None else value

    def whole(self, cross: Tensor, left: Side, right: Side) -> Partials:
        """The kernel itself with its derivatives, as a part of others."""
        value, *by = self.partials(cross, left, right)
        return Partials(self.scaled(value), *(self.scaled(each, shifted=False) for each in by))

    def tangent(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        r"""The derivative :math:`\partial k/\partial G_{xy}`, the kernel of the features' slopes.

        For a nonlinearity φ of Gaussian features u and v it is :math:`E[\phi'(u)\phi'(v)]`, by
        which the neural tangent kernel is multiplied; see :meth:`convdkm.exact.ExactKernel.ntk`.
        Arguments are those of :meth:`of`, ``cross`` in the shape of all three. The result carries
        no gradient.
        """
        if self.is_written_out:
            with torch.no_grad():
                return self.whole(cross, Side.of(left), Side.of(right)).cross
        return derivative(lambda entries: self.of(entries, left, right), cross)

    # -- of whole blocks -----------------------------------------------------------------------

    @property
    def grows_with_norm(self) -> bool:
        """Whether core and variance grow as the norms do; the core takes None for norms of one."""
        return False

    def between(self, ii: Tensor) -> Tensor:
        """The kernel between different inducing points, from a symmetric matrix."""
        own = ii.diagonal()
        if self.is_written_out:
            return self.scaled(elementwise(self, ii, own[:, None], own))
        value = self.of(ii, own[:, None], own)
        return 0.5 * (value + value.T)

    def of_map(self, it: Tensor, inducing: Tensor, tt: Tensor) -> Tensor:
        """The kernel of a map ``(N, P, *space)``, from variances ``(P,)`` and ``(N, *space)``."""
        inducing = inducing.to(it.dtype)
        if self.is_written_out and not differentiates(it, tt, inducing, *self.parameters()):
            return self.scaled(value_of_map(self, it, inducing, tt))
        column = inducing.reshape(-1, *(1,) * (it.ndim - 2))
        return self.of(it, column, tt.unsqueeze(1))

    def convolved(
        self,
        window: Window,
        blocks: Blocks,
        weight: Tensor,
        shift: Tensor | None = None,
    ) -> Tensor:
        """See :func:`convdkm.kernels.pointwise.convolved`."""
        return convolved(self, window, blocks, weight, shift)

    def __add__(self, other: Kernel) -> Kernel:
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel | float) -> Kernel:
        if isinstance(other, Kernel):
            return Product(self, other)
        return Scaled(self, other) if isinstance(other, (int, float)) else NotImplemented

    def __rmul__(self, other: float) -> Kernel:
        return self.__mul__(other)


class Positive(nn.Module):
    """A positive number, fixed or learned through its logarithm."""

    log_value: Tensor

    def __init__(self, name: str, value: float, *, learn: bool) -> None:
        super().__init__()
        check_positive_number(**{name: value})
        log_value = torch.tensor(float(value), dtype=INDUCING_DTYPE).log()
        if learn:
            self.log_value = nn.Parameter(log_value)
        else:
            self.register_buffer("log_value", log_value)

    @classmethod
    def if_given(cls, name: str, value: float | None, *, learn: bool) -> Positive | None:
        """The number, or None where there is none."""
        return None if value is None else cls(name, value, learn=learn)

    def forward(self, like: Tensor) -> Tensor:
        """The number, in the precision of ``like``."""
        return self.log_value.exp().to(like.dtype)

    def extra_repr(self) -> str:
        learned = isinstance(self.log_value, nn.Parameter)
        return f"{float(self.log_value.detach().exp()):.4g}{', learned' if learned else ''}"


class WrittenOut(Kernel):
    """Base class of kernels that define :meth:`core` and :meth:`partials`.

    Two families derived from it, :class:`convdkm.Angular` and :class:`convdkm.Isotropic`, define
    both for kernels that are a function of one number.
    """

    @property
    def is_written_out(self) -> bool:
        return keeps(self, WrittenOut, "of")

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return self.scaled(elementwise(self, cross, left, right))


def derivative(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Of a function of every entry, by every entry."""
    if torch.compiler.is_compiling():
        pull: Any = torch.func.vjp(function, x)[1]
        result: Tensor = pull(torch.ones_like(x))[0]
        return result
    with torch.enable_grad():
        entries = x.detach().requires_grad_()
        value = function(entries)
    return torch.autograd.grad(value, entries, torch.ones_like(value))[0]


class Linear(Kernel):
    """The linear kernel ``k(x, y) = G_xy``: a layer without nonlinearity."""

    is_written_out = True

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return cross

    def variance(self, own: Tensor) -> Tensor:
        return own

    def plan(self, ii: Tensor) -> Plan:
        return KernelPlan(self, ii)  # there is nothing to do

    def core(self, cross: Tensor, left: Side, right: Side) -> Tensor:
        return cross

    def partials(self, cross: Tensor, left: Side, right: Side) -> Partials:
        nothing = torch.zeros_like(cross)
        return Partials(cross, torch.ones_like(cross), nothing, nothing)


class _Combination(Kernel):
    """A kernel made of others."""

    def __init__(self, *kernels: Kernel) -> None:
        super().__init__()
        for kernel in kernels:
            if not isinstance(kernel, Kernel):
                raise InvalidInputError(
                    f"{type(self).__name__} takes kernels, got a {type(kernel).__name__}"
                )
        if not kernels:
            raise InvalidInputError(f"{type(self).__name__} needs at least one kernel")

    def parts(self) -> list[Kernel]:
        """The others."""
        raise NotImplementedError

    def combined(self, values: list[Tensor]) -> Tensor:
        """The kernel from those of the parts."""
        raise NotImplementedError

    @property
    def is_written_out(self) -> bool:
        return keeps(self, _Combination, "of") and all(k.is_written_out for k in self.parts())

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return self.combined([kernel.of(cross, left, right) for kernel in self.parts()])

    def variance(self, own: Tensor) -> Tensor:
        return self.combined([kernel.variance(own) for kernel in self.parts()])

    def core(self, cross: Tensor, left: Side, right: Side) -> Tensor:
        return self.combined([k.scaled(k.core(cross, left, right)) for k in self.parts()])

    def tangent(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        # Here and below: linear in its parts, unless a class says otherwise.
        with torch.no_grad():
            return self.combined([kernel.tangent(cross, left, right) for kernel in self.parts()])

    def partials(self, cross: Tensor, left: Side, right: Side) -> Partials:
        wholes = [kernel.whole(cross, left, right) for kernel in self.parts()]
        return Partials(*(self.combined(list(each)) for each in zip(*wholes, strict=True)))


class Scaled(_Combination):
    """``factor · k``, with the factor fixed or learned."""

    def __init__(self, kernel: Kernel, factor: float = 1.0, *, learn: bool = False) -> None:
        super().__init__(kernel)
        self.kernel = kernel
        self.factor = Positive("the factor of a kernel", factor, learn=learn)

    def parts(self) -> list[Kernel]:
        return [self.kernel]

    def combined(self, values: list[Tensor]) -> Tensor:
        return self.factor(values[0]) * values[0]


class _Several(_Combination):
    def __init__(self, *kernels: Kernel) -> None:
        super().__init__(*kernels)
        self.kernels = nn.ModuleList(kernels)

    def parts(self) -> list[Kernel]:
        return list(self.kernels)  # type: ignore[arg-type]


class Sum(_Several):
    """``k₁ + k₂ + …``"""

    def combined(self, values: list[Tensor]) -> Tensor:
        return functools.reduce(operator.add, values)


class Product(_Several):
    """``k₁ · k₂ · …``"""

    def combined(self, values: list[Tensor]) -> Tensor:
        return functools.reduce(operator.mul, values)

    def tangent(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        blocks = cross, left, right
        with torch.no_grad():
            pairs: list[tuple[Tensor, ...]]
            pairs = [(kernel.of(*blocks), kernel.tangent(*blocks)) for kernel in self.parts()]
            return functools.reduce(_multiplied, pairs)[1]

    def partials(self, cross: Tensor, left: Side, right: Side) -> Partials:
        wholes = [tuple(kernel.whole(cross, left, right)) for kernel in self.parts()]
        return Partials(*functools.reduce(_multiplied, wholes))


def _multiplied(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The product of two values, each of which is followed by its derivatives, with its own."""
    by = (x * second[0] + first[0] * y for x, y in zip(first[1:], second[1:], strict=True))
    return first[0] * second[0], *by


class ConvexCombination(_Several):
    """``Σ wₖ kₖ`` with weights that are positive and sum to one, fixed or learned.

    Args:
        kernels: the kernels to combine.
        weights: their weights; normalised to sum to one. Equal by default.
        learn: learn the weights (as logits).
    """

    logits: Tensor

    def __init__(
        self, *kernels: Kernel, weights: tuple[float, ...] | None = None, learn: bool = False
    ) -> None:
        super().__init__(*kernels)
        weights = (1.0,) * len(kernels) if weights is None else tuple(weights)
        if len(weights) != len(kernels) or any(not 0 < weight < math.inf for weight in weights):
            raise InvalidInputError(
                f"{len(kernels)} kernels need {len(kernels)} positive weights, got {weights}"
            )
        logits = torch.tensor(weights, dtype=INDUCING_DTYPE).log()
        if learn:
            self.logits = nn.Parameter(logits)
        else:
            self.register_buffer("logits", logits)

    def combined(self, values: list[Tensor]) -> Tensor:
        weights = torch.softmax(self.logits, 0).to(values[0].dtype)
        weighted = (w * value for w, value in zip(weights, values, strict=True))
        return functools.reduce(operator.add, weighted)

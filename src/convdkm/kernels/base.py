r"""Kernels computed from a Gram matrix alone (Eq. 2 to 4).

A kernel here is a function of three numbers: :math:`k(x, y)` from :math:`G_{xy}`, :math:`G_{xx}`
and :math:`G_{yy}`. It is applied to every entry of every block, and knows nothing of space.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from convdkm.checks import check_positive_number
from convdkm.errors import InvalidInputError
from convdkm.gram import INDUCING_DTYPE
from convdkm.layers.base import Layer, Plan


class Kernel(Layer):
    """Base class of kernels: define :meth:`of` and :meth:`variance`.

    Kernels add, multiply, and are scaled by numbers: ``0.5 * ArcCosine() + Linear()``.
    """

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """``k(x, y)`` from ``cross = G_xy``, ``left = G_xx`` and ``right = G_yy`` (broadcast)."""
        raise NotImplementedError(f"{type(self).__name__} must define of(cross, left, right)")

    def variance(self, own: Tensor) -> Tensor:
        """``k(x, x)`` from ``own = G_xx``."""
        raise NotImplementedError(f"{type(self).__name__} must define variance(own)")

    def plan(self, ii: Tensor) -> Plan:
        return KernelPlan(self, ii)

    def __add__(self, other: Kernel) -> Kernel:
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel | float) -> Kernel:
        if isinstance(other, Kernel):
            return Product(self, other)
        return Scaled(self, other) if isinstance(other, (int, float)) else NotImplemented

    def __rmul__(self, other: float) -> Kernel:
        return self.__mul__(other)


class KernelPlan(Plan):
    """The kernel of every entry: the diagonal by :meth:`Kernel.variance`, the rest by ``of``."""

    def __init__(self, kernel: Kernel, ii: Tensor) -> None:
        self.kernel = kernel
        self.inducing = ii.diagonal()
        super().__init__(self.inside(ii))

    def inside(self, ii: Tensor) -> Tensor:
        """The kernel between inducing points."""
        own = self.inducing
        value = self.kernel.of(ii, own[:, None], own[None, :])
        value = 0.5 * (value + value.T)
        return torch.diagonal_scatter(value, self.kernel.variance(own))

    def data(self, it: Tensor, tt: Tensor) -> tuple[Tensor, Tensor]:
        inducing = self.inducing.to(it.dtype).reshape(-1, *(1,) * (it.ndim - 2))
        return self.kernel.of(it, inducing, tt.unsqueeze(1)), self.kernel.variance(tt)


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

    def forward(self, like: Tensor) -> Tensor:
        """The number, in the precision of ``like``."""
        return self.log_value.exp().to(like.dtype)

    def extra_repr(self) -> str:
        learned = isinstance(self.log_value, nn.Parameter)
        return f"{float(self.log_value.detach().exp()):.4g}{', learned' if learned else ''}"


class Linear(Kernel):
    """The linear kernel ``k(x, y) = G_xy``: a layer without nonlinearity."""

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return cross

    def variance(self, own: Tensor) -> Tensor:
        return own


class Scaled(Kernel):
    """``factor · k``, with the factor fixed or learned."""

    def __init__(self, kernel: Kernel, factor: float = 1.0, *, learn: bool = False) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise InvalidInputError(f"Scaled takes a kernel, got a {type(kernel).__name__}")
        self.kernel = kernel
        self.factor = Positive("the factor of a kernel", factor, learn=learn)

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return self.factor(cross) * self.kernel.of(cross, left, right)

    def variance(self, own: Tensor) -> Tensor:
        return self.factor(own) * self.kernel.variance(own)


class _Several(Kernel):
    def __init__(self, *kernels: Kernel) -> None:
        super().__init__()
        for kernel in kernels:
            if not isinstance(kernel, Kernel):
                raise InvalidInputError(
                    f"{type(self).__name__} takes kernels, got a {type(kernel).__name__}"
                )
        if not kernels:
            raise InvalidInputError(f"{type(self).__name__} needs at least one kernel")
        self.kernels = nn.ModuleList(kernels)

    def _values(self, cross: Tensor, left: Tensor, right: Tensor) -> list[Tensor]:
        return [kernel.of(cross, left, right) for kernel in self.kernels]  # type: ignore[operator]

    def _variances(self, own: Tensor) -> list[Tensor]:
        return [kernel.variance(own) for kernel in self.kernels]  # type: ignore[operator]


class Sum(_Several):
    """``k₁ + k₂ + …``"""

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return torch.stack(self._values(cross, left, right)).sum(0)

    def variance(self, own: Tensor) -> Tensor:
        return torch.stack(self._variances(own)).sum(0)


class Product(_Several):
    """``k₁ · k₂ · …``"""

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return torch.stack(self._values(cross, left, right)).prod(0)

    def variance(self, own: Tensor) -> Tensor:
        return torch.stack(self._variances(own)).prod(0)


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

    def _combine(self, values: list[Tensor]) -> Tensor:
        weights = torch.softmax(self.logits, 0).to(values[0].dtype)
        return torch.stack([w * value for w, value in zip(weights, values, strict=True)]).sum(0)

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return self._combine(self._values(cross, left, right))

    def variance(self, own: Tensor) -> Tensor:
        return self._combine(self._variances(own))

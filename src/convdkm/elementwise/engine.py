"""What an engine does, on maps given as rows: ``(pixels, P)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from convdkm.maps import product


class VarianceGradient(NamedTuple):
    """Gradients of :meth:`Engine.variance` by its arguments."""

    rows: Tensor
    own: Tensor
    spread: Tensor
    shift: Tensor | None


class DiagonalGradient(NamedTuple):
    """Gradients of :meth:`Engine.diagonal_variance`.

    Attributes:
        rows: by V, ``(rows, P)``.
        own: by :math:`k_{tt}`, ``(rows,)``.
        second: :math:`\\sum_r \\bar g_r V_r V_r^T`, ``(P, P)``.
        first: :math:`\\sum_r \\bar g_r V_r`, ``(P,)``; None where there is no shift.
    """

    rows: Tensor
    own: Tensor
    second: Tensor
    first: Tensor | None


class ReluGradient(NamedTuple):
    """Gradients of :meth:`Engine.relu` by its arguments."""

    cross: Tensor
    inducing: Tensor
    own: Tensor
    offset: Tensor


class BlockGradient(NamedTuple):
    """Gradients of a kernel by the blocks of the Gram."""

    cross: Tensor
    inducing: Tensor
    own: Tensor


class Engine(Protocol):
    r"""Works out the kernel and the learned variance, and their gradients.

    The kernel is κ = s + (π − θ)c + β: π times the arc-cosine kernel of order 1, plus an offset,
    with :math:`a = G_{ii}`, :math:`b = g_{tt}`, :math:`c = G_{it}`, :math:`s = \sqrt{ab - c^2}` and
    θ the angle; or, with :math:`h = \sqrt{ab}`, :math:`k = h e^{\gamma(c/h - 1)}` or
    :math:`k = c\,q(c/h)` with a polynomial q. The variance is
    :math:`\max(k_{tt} - |V|^2, 0) + |Q^TV - u|^2`.
    """

    def relu(self, cross: Tensor, inducing: Tensor, own: Tensor, offset: Tensor | None) -> Tensor:
        """κ of ``cross`` (rows, P), ``inducing`` (P,) and ``own`` (rows, 1)."""
        ...

    def relu_gradient(
        self, grad: Tensor, cross: Tensor, inducing: Tensor, own: Tensor
    ) -> ReluGradient:
        r"""Gradients from that by κ, ``grad``.

        By c it is (π − θ)·grad, by a and b the sums of s·grad over 2a and over 2b; zero where a or
        b is zero.
        """
        ...

    def gaussian(self, cross: Tensor, inducing: Tensor, own: Tensor, gamma: Tensor) -> Tensor:
        """k of ``cross`` (rows, P), ``inducing`` (P,), ``own`` (rows, 1) and ``gamma`` ()."""
        ...

    def gaussian_gradient(
        self, grad: Tensor, value: Tensor, blocks: tuple[Tensor, Tensor, Tensor], gamma: Tensor
    ) -> BlockGradient:
        r"""Gradients from that by k, ``grad``, and k itself, ``value``.

        By c it is :math:`\gamma\bar k k/h`, by a and b the sums of :math:`\bar k k(1 - \gamma c/h)`
        over 2a and over 2b; zero where a or b is zero.

        Args:
            blocks: ``cross``, ``inducing`` and ``own``, as above.
        """
        ...

    def polynomial(
        self, cross: Tensor, inducing: Tensor, own: Tensor, weights: tuple[float, ...]
    ) -> Tensor:
        """k with the coefficients of q, ``weights``, from 0 up; the rest as above."""
        ...

    def polynomial_gradient(
        self,
        grad: Tensor,
        blocks: tuple[Tensor, Tensor, Tensor],
        both: tuple[tuple[float, ...], tuple[float, ...]],
    ) -> BlockGradient:
        r"""Gradients from that by k, ``grad``.

        With :math:`\rho = c/h`, by c it is :math:`\bar k(q + \rho q')`, by a and b the sums of
        :math:`-\bar k c \rho q'` over 2a and over 2b; zero where a or b is zero.

        Args:
            blocks: ``cross``, ``inducing`` and ``own``, as above.
            both: coefficients of q and of q'.
        """
        ...

    def variance(
        self, rows: Tensor, own: Tensor, spread: Tensor, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The variance (rows,) of V ``rows``, and what of it is left of ``own``."""
        ...

    def variance_gradient(
        self,
        grad: Tensor,
        by_product: Tensor,
        matrix: Tensor,
        saved: tuple[Tensor, Tensor, Tensor, Tensor | None],
    ) -> VarianceGradient:
        """Gradients by V, ``own``, ``spread`` and ``shift``.

        Args:
            grad: gradient by the variance.
            by_product: gradient by ``V · matrixᵀ``.
            matrix: what V was multiplied by besides.
            saved: ``rows``, what is left of ``own``, ``spread`` and ``shift``.
        """
        ...

    def diagonal_variance(
        self, rows: Tensor, own: Tensor, roots: Tensor, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        r"""As :meth:`variance` for :math:`Q^T V - u` whose norm is that of :math:`\Sigma V - t`.

        Args:
            rows, own: as there.
            roots: Σ, ``(P,)``.
            shift: t, ``(P,)``; zero if not given.
        """
        ...

    def diagonal_gradient(
        self,
        grad: Tensor,
        by_product: Tensor,
        matrix: Tensor,
        saved: tuple[Tensor, Tensor, Tensor, Tensor | None],
    ) -> DiagonalGradient:
        """As :meth:`variance_gradient`; ``saved`` holds Σ in place of Q, and t."""
        ...


def learned(rows: Tensor, spread: Tensor, shift: Tensor | None) -> Tensor:
    """U = QᵀV − u, as rows."""
    result = product(rows, spread.T)
    return result if shift is None else result.sub_(shift)


def series(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """A polynomial in x; its coefficients from 0 up, at least one."""
    *lower, last = coefficients
    if not lower:
        return torch.full_like(x, last)
    total = x * last + lower[-1]
    for coefficient in lower[-2::-1]:
        total = total * x + coefficient
    return total

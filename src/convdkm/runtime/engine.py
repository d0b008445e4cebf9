"""What an engine does, on maps given as rows: ``(pixels, P)``."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from convdkm.runtime.maps import product


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


class Engine(Protocol):
    r"""Works out the learned variance :math:`\max(k_{tt} - |V|^2, 0) + |Q^TV - u|^2`."""

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

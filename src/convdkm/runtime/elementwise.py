"""The work on every entry of every map, which is most of what a step costs beside convolutions.

An :class:`Engine` does it by PyTorch's own operations, on pieces of a map that stay in the
processor's cache, and :class:`Compiled` by functions that ``torch.compile`` makes, in one pass over
memory for each result. They agree to rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from convdkm.runtime.compiled import attempted, compiled_for_rows
from convdkm.runtime.maps import pieces, product, summed_products, without_autocast

Saved = tuple[Tensor, Tensor, Tensor, "Tensor | None"]
Gradients = tuple[Tensor, Tensor, Tensor, "Tensor | None"]


def _learned(rows: Tensor, projection: Tensor, shift: Tensor | None) -> Tensor:
    """U = QᵀV − u, as rows."""
    result = product(rows, projection.T)
    return result if shift is None else result.sub_(shift)


class Engine:
    r"""Works out the learned variance :math:`\max(k_{tt} - |V|^2, 0) + |Q^TV - u|^2`.

    Maps are given as rows: V is ``(pixels, P)`` and :math:`k_{tt}`, the prior, ``(pixels,)``.
    Methods also tell where the first of the two terms is clamped, and so has no gradient.
    """

    def variance(
        self, rows: Tensor, prior: Tensor, projection: Tensor, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The variance and where it is clamped, from V, ``k_tt``, Q and u."""
        variance = torch.empty_like(prior)
        clamped = torch.empty_like(prior, dtype=torch.bool)
        for piece in pieces(rows):
            part, left = rows[piece], variance[piece]
            torch.sub(prior[piece], part.square().sum(1), out=left)
            torch.le(left, 0, out=clamped[piece])
            left.clamp_(min=0).add_(_learned(part, projection, shift).square_().sum(1))
        return variance, clamped

    def variance_gradient(
        self, grad: Tensor, by_product: Tensor, matrix: Tensor, saved: Saved
    ) -> Gradients:
        """Gradients by V, ``k_tt``, Q and u.

        Args:
            grad: gradient by the variance.
            by_product: gradient by ``V · matrixᵀ``.
            matrix: what V was multiplied by besides.
            saved: V, where the variance is clamped, Q and u.
        """
        rows, clamped, projection, shift = saved
        by_rows, by_projection = torch.empty_like(rows), torch.zeros_like(projection)
        by_shift = None if shift is None else torch.zeros_like(shift)
        by_prior = grad.masked_fill(clamped, 0)
        for piece in pieces(rows):
            part, out = rows[piece], by_rows[piece]
            inner = _learned(part, projection, shift).mul_(2 * grad[piece, None])
            torch.mul(part, -2 * by_prior[piece, None], out=out)
            out.addmm_(by_product[piece], matrix).addmm_(inner, projection.T)
            by_projection.addmm_(part.T, inner)
            if by_shift is not None:
                by_shift.sub_(inner.sum(0))
        return by_rows, by_prior, by_projection, by_shift

    def diagonal_variance(
        self, rows: Tensor, prior: Tensor, roots: Tensor, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        r"""As :meth:`variance` for :math:`Q^T V - u` whose norm is that of :math:`\Sigma V - t`.

        Args:
            rows, prior: as there.
            roots: the diagonal of Σ, ``(P,)``.
            shift: t, ``(P,)``; zero if not given.
        """
        variance = torch.empty_like(prior)
        clamped = torch.empty_like(prior, dtype=torch.bool)
        # A sum over few numbers side by side is slow where it is not a product.
        ones, squares = torch.ones_like(roots), roots.square()
        with without_autocast(rows):
            for piece in pieces(rows):
                part, left = rows[piece], variance[piece]
                square = part.square()
                torch.sub(prior[piece], square @ ones, out=left)
                torch.le(left, 0, out=clamped[piece])
                left.clamp_(min=0)
                if shift is None:
                    left.add_(square @ squares)
                else:
                    inner = torch.addcmul(-shift, part, roots, out=square).square_()
                    left.add_(inner @ ones)
        return variance, clamped

    def diagonal_gradient(
        self, grad: Tensor, by_product: Tensor, matrix: Tensor, saved: Saved
    ) -> Gradients:
        r"""As :meth:`variance_gradient`; ``saved`` holds Σ in place of Q, and t.

        In the places of the gradients by Q and u stand the weighted moments of V,
        :math:`\sum_r \bar g_r V_r V_r^T` and :math:`\sum_r \bar g_r V_r`.
        """
        rows, clamped, roots, shift = saved
        by_rows, second = torch.empty_like(rows), rows.new_zeros(rows.shape[1], rows.shape[1])
        first = None if shift is None else torch.zeros_like(shift)
        by_prior = grad.masked_fill(clamped, 0)
        for piece in pieces(rows):
            part, out, weight = rows[piece], by_rows[piece], grad[piece, None]
            inner = part * roots
            if shift is not None:
                inner.sub_(shift)
            inner.mul_(roots).mul_(weight)
            torch.addcmul(inner, part, by_prior[piece, None], value=-1, out=out).mul_(2)
            out.addmm_(by_product[piece], matrix)
            weighted = torch.mul(part, weight, out=inner)
            second.addmm_(part.T, weighted)
            if first is not None:
                first.add_(weighted.sum(0))
        return by_rows, by_prior, second, first


PIECEWISE = Engine()


def _variance(rows: Tensor, inner: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
    residual = prior - (rows * rows).sum(1)
    return residual.clamp(min=0) + (inner * inner).sum(1), residual <= 0


def _variance_gradient(
    rows: Tensor, inner: Tensor, through: Tensor, grad: Tensor, clamped: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    by_prior = torch.where(clamped, 0, grad)
    return through - 2 * by_prior[:, None] * rows, 2 * grad[:, None] * inner, by_prior


def diagonal_variance(
    rows: Tensor, prior: Tensor, roots: Tensor, shift: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See :meth:`Engine.diagonal_variance`; also of maps, where the others broadcast to them."""
    inner = rows * roots if shift is None else rows * roots - shift
    return _variance(rows, inner, prior)


def _diagonal_gradient(  # noqa: PLR0917
    rows: Tensor,
    through: Tensor,
    grad: Tensor,
    clamped: Tensor,
    roots: Tensor,
    shift: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    by_prior = torch.where(clamped, 0, grad)
    inner = rows * roots if shift is None else rows * roots - shift
    weight = grad[:, None]
    by_rows = through + 2 * (weight * roots * inner - by_prior[:, None] * rows)
    return by_rows, weight * rows, by_prior


class Compiled(Engine):
    """The same by functions of ``torch.compile``."""

    def __init__(self) -> None:
        self._variance: Callable[..., tuple[Tensor, Tensor]] = compiled_for_rows(_variance)
        self._variance_gradient = compiled_for_rows(_variance_gradient)
        self._diagonal_variance: Callable[..., tuple[Tensor, Tensor]] = compiled_for_rows(
            diagonal_variance, any_width=True
        )
        self._diagonal_gradient = compiled_for_rows(_diagonal_gradient, any_width=True)

    def variance(
        self, rows: Tensor, prior: Tensor, projection: Tensor, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return self._variance(rows, _learned(rows, projection, shift), prior)

    def diagonal_variance(
        self, rows: Tensor, prior: Tensor, roots: Tensor, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return self._diagonal_variance(rows, prior, roots, shift)

    def variance_gradient(
        self, grad: Tensor, by_product: Tensor, matrix: Tensor, saved: Saved
    ) -> Gradients:
        rows, clamped, projection, shift = saved
        inner = _learned(rows, projection, shift)
        through = product(by_product, matrix.T)
        by_rows, inner, by_prior = self._variance_gradient(rows, inner, through, grad, clamped)
        by_rows.add_(product(inner, projection))
        by_shift = None if shift is None else -inner.sum(0)
        return by_rows, by_prior, summed_products(rows, inner), by_shift

    def diagonal_gradient(
        self, grad: Tensor, by_product: Tensor, matrix: Tensor, saved: Saved
    ) -> Gradients:
        rows, clamped, roots, shift = saved
        by_rows, weighted, by_prior = self._diagonal_gradient(
            rows, product(by_product, matrix.T), grad, clamped, roots, shift
        )
        first = None if shift is None else weighted.sum(0)
        return by_rows, by_prior, summed_products(rows, weighted), first


@functools.cache
def compiled_engine() -> Compiled | None:
    """The compiled engine, tried out; None (and a warning in the log) where nothing compiles."""

    def make() -> Compiled:
        engine = Compiled()
        with torch.no_grad():
            engine.diagonal_variance(torch.zeros(24, 16), torch.ones(24), torch.ones(16), None)
        return engine

    return attempted(make)


def engine(*, compiled: bool) -> Engine:
    """The compiled engine where it is asked for and there is a compiler, else the other."""
    return (compiled_engine() if compiled else None) or PIECEWISE

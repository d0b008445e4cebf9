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

Saved = tuple[Tensor, Tensor, Tensor, "Tensor | None", "Tensor | None"]
Gradients = tuple[Tensor, Tensor, Tensor]


def _learned(rows: Tensor, projection: Tensor, shift: Tensor | None) -> Tensor:
    """U = QᵀV − u, as rows, in the precision of Q."""
    result = product(rows, projection.T).to(projection.dtype)
    return result if shift is None else result.sub_(shift)


class Engine:
    r"""Works out the learned variance :math:`g = \max(k_{tt} - |V|^2, 0) + |Q^TV - u|^2`.

    Maps are given as rows: V is ``(pixels, P)``, maybe in a lower precision than the rest, and
    :math:`k_{tt}`, the prior, ``(pixels,)``. Methods also tell where the first of the two terms is
    clamped, and so has no gradient.

    Gradients come from :math:`\bar g`, the gradient by the variance, and from that by
    :math:`V\,\text{matrix}^T`, ``by_product``. They are those by V, plus ``each`` if it is given,
    and by :math:`k_{tt}`; and the weighted moment of V, :math:`\sum_r \bar g_r V_r V_r^T`.
    """

    def variance(
        self, rows: Tensor, prior: Tensor, projection: Tensor, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The variance and where it is clamped, from V, ``k_tt``, Q and u."""
        variance = torch.empty_like(prior)
        clamped = torch.empty_like(prior, dtype=torch.bool)
        for piece in pieces(rows):
            part, left = rows[piece].to(prior.dtype), variance[piece]
            torch.sub(prior[piece], part.square().sum(1), out=left)
            torch.le(left, 0, out=clamped[piece])
            left.clamp_(min=0).add_(_learned(part, projection, shift).square_().sum(1))
        return variance, clamped

    def variance_gradient(
        self, grad: Tensor, by_product: Tensor, matrix: Tensor, saved: Saved
    ) -> Gradients:
        """Gradients by V and ``k_tt``, and the moment of V.

        Args:
            grad: gradient by the variance.
            by_product: gradient by ``V · matrixᵀ``.
            matrix: what V was multiplied by besides.
            saved: V, where the variance is clamped, Q, u, and what every row gets besides.
        """
        return self._gradient(grad, by_product, matrix, saved, _pulled)

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
                part, left = rows[piece].to(prior.dtype), variance[piece]
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
        """As :meth:`variance_gradient`; ``saved`` holds Σ in place of Q, and t in that of u."""
        return self._gradient(grad, by_product, matrix, saved, _pulled_by_roots)

    @staticmethod
    def _gradient(
        grad: Tensor,
        by_product: Tensor,
        matrix: Tensor,
        saved: Saved,
        pulled: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    ) -> Gradients:
        rows, clamped, learned, shift, each = saved
        by_rows, by_prior = torch.empty_like(rows), grad.masked_fill(clamped, 0)
        moment = grad.new_zeros(rows.shape[1], rows.shape[1])
        for piece in pieces(rows):
            part, weight = rows[piece].to(grad.dtype), grad[piece, None]
            inner = pulled(part, learned, shift).mul_(weight)
            inner.addcmul_(part, by_prior[piece, None], value=-1).mul_(2)
            inner.add_(product(by_product[piece], matrix.T))
            by_rows[piece] = inner if each is None else inner.add_(each)
            moment.add_(summed_products(part, torch.mul(part, weight, out=inner)))
        return by_rows, by_prior, moment


def _pulled(rows: Tensor, projection: Tensor, shift: Tensor | None) -> Tensor:
    """Half the gradient by V of ``|QᵀV − u|²``."""
    return product(_learned(rows, projection, shift), projection).to(projection.dtype)


def _pulled_by_roots(rows: Tensor, roots: Tensor, shift: Tensor | None) -> Tensor:
    """Half the gradient by V of ``|ΣV − t|²``."""
    inner = rows * roots
    return (inner if shift is None else inner.sub_(shift)).mul_(roots)


PIECEWISE = Engine()


def _variance(rows: Tensor, inner: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
    rows = rows.to(prior.dtype)
    residual = prior - (rows * rows).sum(1)
    return residual.clamp(min=0) + (inner * inner).sum(1), residual <= 0


def _rows_gradient(  # noqa: PLR0917
    rows: Tensor,
    pulled: Tensor,
    through: Tensor,
    grad: Tensor,
    clamped: Tensor,
    each: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    wide, weight = rows.to(grad.dtype), grad[:, None]
    by_prior = torch.where(clamped, 0, grad)
    by_rows = through + 2 * (weight * pulled - by_prior[:, None] * wide)
    by_rows = by_rows if each is None else by_rows + each
    return by_rows.to(rows.dtype), (weight * wide).to(rows.dtype), by_prior


def diagonal_variance(
    rows: Tensor, prior: Tensor, roots: Tensor, shift: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See :meth:`Engine.diagonal_variance`; also of maps, where the others broadcast to them."""
    inner = rows.to(prior.dtype) * roots
    return _variance(rows, inner if shift is None else inner - shift, prior)


def _diagonal_gradient(  # noqa: PLR0917
    rows: Tensor,
    through: Tensor,
    grad: Tensor,
    clamped: Tensor,
    roots: Tensor,
    shift: Tensor | None,
    each: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    inner = rows.to(grad.dtype) * roots
    inner = inner if shift is None else inner - shift
    return _rows_gradient(rows, roots * inner, through, grad, clamped, each)


class Compiled(Engine):
    """The same by functions of ``torch.compile``."""

    def __init__(self) -> None:
        self._variance: Callable[..., tuple[Tensor, Tensor]] = compiled_for_rows(_variance)
        self._rows_gradient = compiled_for_rows(_rows_gradient)
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
        rows, clamped, projection, shift, each = saved
        pulled, through = _pulled(rows, projection, shift), product(by_product, matrix.T)
        by_rows, weighted, by_prior = self._rows_gradient(
            rows, pulled, through, grad, clamped, each
        )
        return by_rows, by_prior, summed_products(rows, weighted)

    def diagonal_gradient(
        self, grad: Tensor, by_product: Tensor, matrix: Tensor, saved: Saved
    ) -> Gradients:
        rows, clamped, roots, shift, each = saved
        by_rows, weighted, by_prior = self._diagonal_gradient(
            rows, product(by_product, matrix.T), grad, clamped, roots, shift, each
        )
        return by_rows, by_prior, summed_products(rows, weighted)


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

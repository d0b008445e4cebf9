r"""The only place where the machine factorises a matrix, and functions that must not go wrong.

Factorisations work on the inducing chain, in float64. The building block is the *whitened*
coordinate of a block :math:`K_{it}`: with :math:`K_{ii} = L L^T` it is :math:`V = L^{-1} K_{it}`,
so that :math:`K_{ti} K_{ii}^{-1} K_{it} = V^T V` and the variance that the inducing points leave
unexplained, :math:`k_{tt} - |V|^2`, is a difference that can be clamped at zero without hiding an
error (it is a variance, and only rounding can make it negative).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from convdkm.errors import (
    InvalidInputError,
    NotFiniteError,
    NotPositiveDefiniteError,
    NumericalError,
)
from convdkm.runtime.maps import as_rows, from_rows, product
from convdkm.runtime.tape import leaf

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_LOG = logging.getLogger(__name__)

_POINT = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
"""Jitter tried by :func:`cholesky`, relative to the mean of the diagonal."""

SMALLEST_PIVOT = 1e-14
"""A squared pivot below this share of the mean of the diagonal counts as not positive."""


def cholesky(matrix: Float[Tensor, "P P"], what: str) -> Float[Tensor, "P P"]:
    """Lower Cholesky factor of a symmetric positive definite matrix.

    Jitter is added only where it is needed, in steps that are bounded (:data:`JITTERS`), and
    logged (``logging.getLogger("convdkm.numerics")``, at level debug).

    Args:
        matrix: ``(P, P)``.
        what: what the matrix is, for the error message ("the kernel matrix K_ii").

    Raises:
        NotFiniteError: the matrix has NaN or infinite entries.
        NotPositiveDefiniteError: the matrix is not positive definite even with jitter.
    """
    if torch.is_grad_enabled() and matrix.requires_grad:
        return factorised(matrix, what)[0]
    return cholesky_factor(matrix.detach(), what)


def factorised(
    matrix: Float[Tensor, "P P"], what: str
) -> tuple[Float[Tensor, "P P"], Float[Tensor, "P P"]]:
    r"""The factor L of :func:`cholesky` and its inverse, with one backward pass for both.

    With :math:`X = L^{-1}` and :math:`\Phi` taking the lower triangle and halving its diagonal,

    .. math:: \bar K = \tfrac12 X^T (S + S^T) X, \qquad S = \Phi(L^T \bar L - \bar X X^T).
    """
    factor = cholesky_factor(matrix.detach(), what)
    lower, inverse = _Factorised.apply(matrix, factor)
    return lower, inverse


class _Factorised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        inverse = inverse_of_lower(factor)
        ctx.save_for_backward(factor, inverse)
        ctx.set_materialize_grads(False)
        return factor, inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_factor: Tensor | None, by_inverse: Tensor | None) -> Any:
        factor, inverse = ctx.saved_tensors
        return gradient_of_factorised(factor, inverse, by_factor, by_inverse), None


def gradient_of_factorised(
    factor: Float[Tensor, "P P"],
    inverse: Float[Tensor, "P P"],
    by_factor: Float[Tensor, "P P"] | None,
    by_inverse: Float[Tensor, "P P"] | None,
) -> Float[Tensor, "P P"]:
    """The gradient by a matrix, from those by its factor and by the factor's inverse."""
    inner = torch.zeros_like(factor) if by_factor is None else factor.mT @ by_factor
    if by_inverse is not None:
        inner = torch.addmm(inner, by_inverse, inverse.mT, alpha=-1)
    inner = inner.tril()
    inner.diagonal().mul_(0.5)
    return inverse.mT @ (inner + inner.mT).mul_(0.5) @ inverse


@leaf
def cholesky_factor(matrix: Float[Tensor, "P P"], what: str) -> Float[Tensor, "P P"]:
    """:func:`cholesky`, without a derivative."""
    if matrix.is_meta:
        return torch.linalg.cholesky_ex(matrix)[0]
    mean = matrix.diagonal().abs().mean()
    for jitter in JITTERS:
        shifted = matrix
        if jitter:
            shifted = matrix.clone()
            shifted.diagonal().add_(jitter * mean)
        factor, info = torch.linalg.cholesky_ex(shifted)
        if _is_sound(factor, info, mean):
            if jitter:
                _LOG.debug("%s needed jitter of %g times its mean variance", what, jitter)
            return factor
    size = matrix.shape[0]
    bad = int((~torch.isfinite(matrix)).sum())
    if bad:
        raise NotFiniteError(what, matrix.dtype, size, bad)
    smallest = float(torch.linalg.eigvalsh(matrix).min())
    raise NotPositiveDefiniteError(what, matrix.dtype, size, smallest, JITTERS[-1] * float(mean))


def _is_sound(factor: Tensor, info: Tensor, mean: Tensor) -> bool:
    """Whether a factorisation succeeded, and no pivot is lost in rounding."""
    pivot = factor.diagonal().min()
    if factor.device.type == "cpu":
        return int(info) == 0 and float(pivot) ** 2 > SMALLEST_PIVOT * float(mean)
    return bool((info == 0) & (pivot.square() > SMALLEST_PIVOT * mean))  # waits once


def strict_cholesky(
    matrices: Float[Tensor, "*batch P P"], what: str
) -> Float[Tensor, "*batch P P"]:
    """Lower Cholesky factors, without jitter: for densities, which a singular matrix has not.

    Raises:
        NumericalError: a matrix is not positive definite; a squared pivot below
            :data:`SMALLEST_PIVOT` times the mean of the diagonal counts as zero.
    """
    factors, info = torch.linalg.cholesky_ex(matrices)
    pivots = factors.detach().diagonal(dim1=-2, dim2=-1).amin(-1).square()
    mean = matrices.detach().diagonal(dim1=-2, dim2=-1).mean(-1)
    sound = (info == 0) & (pivots > SMALLEST_PIVOT * mean)
    if not bool(sound.all()):
        which = "" if sound.ndim == 0 else f" ({int((~sound).sum())} of {sound.numel()} matrices)"
        raise NumericalError(f"{what} is not positive definite{which}")
    return factors


def inverse_of_lower(factor: Float[Tensor, "*batch P P"]) -> Float[Tensor, "*batch P P"]:
    """Inverse of a lower-triangular matrix."""
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, identity, upper=False)


def inverse_of_square(matrix: Float[Tensor, "*batch P P"]) -> Float[Tensor, "*batch P P"]:
    """Inverse of a square matrix."""
    return torch.linalg.inv(matrix)


@leaf
def eigenvectors(matrix: Float[Tensor, "P P"]) -> Float[Tensor, "P P"]:
    """Of a symmetric matrix; not numbers where the matrix holds such, which is found out later."""
    if not matrix.is_meta and not bool(torch.isfinite(matrix.sum())):
        return torch.full_like(matrix, torch.nan)
    return torch.linalg.eigh(matrix)[1]


def square_root(matrix: Float[Tensor, "*batch P P"]) -> Float[Tensor, "*batch P P"]:
    """R with ``R Rᵀ = matrix``, for symmetric matrices that have no negative eigenvalues."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)


def whiten(
    factor: Float[Tensor, "*#batch P P"], right: Float[Tensor, "*#batch P R"]
) -> Float[Tensor, "*batch P R"]:
    """``factor⁻¹ right`` for a lower-triangular factor."""
    return torch.linalg.solve_triangular(factor, right, upper=False)


def inverse_square_root(
    matrix: Float[Tensor, "*batch P P"], *, smallest: float
) -> Float[Tensor, "*batch P P"]:
    """``matrix^(-1/2)`` of symmetric matrices, their eigenvalues taken as ``smallest`` at least."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=smallest).rsqrt().unsqueeze(-2)) @ vectors.mT


def log_abs_det(
    square: Float[Tensor, "*batch P P"], *, triangular: bool = False
) -> Float[Tensor, "*batch"]:
    """``log |det square|``, for one matrix or a batch of them."""
    if triangular:
        return square.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    return torch.linalg.slogdet(square).logabsdet


def whitened_kl(
    spread: Float[Tensor, "*#batch P P"],
    mean: Float[Tensor, "*#batch P"] | None = None,
    *,
    triangular: bool = False,
    taylor: bool = False,
) -> Float[Tensor, "*batch"]:
    r"""KL divergence of a Gaussian in whitened coordinates from the standard normal.

    .. math:: D_{KL}(N(m, Q Q^T) \| N(0, I))
              = \tfrac12 \left(|Q|_F^2 + |m|^2 - \log|Q^T Q| - P\right)

    With :math:`Q = L^{-1}F` it is :math:`D_{KL}(N(0, F F^T) \| N(0, L L^T))`.

    Args:
        spread: Q, ``(..., P, P)``.
        mean: m, ``(..., P)``; zero if not given.
        triangular: Q is known to be triangular.
        taylor: take the part without m to second order, :func:`taylor_kl`.
    """
    size = spread.shape[-1]
    if taylor:
        terms = 2 * taylor_kl(spread)
    else:
        log_det = log_abs_det(spread, triangular=triangular)
        terms = spread.square().sum((-2, -1)) - 2 * log_det - size
    if mean is not None:
        terms = terms + mean.square().sum(-1)
    return 0.5 * terms


def taylor_kl(spread: Float[Tensor, "*batch P P"]) -> Float[Tensor, "*batch"]:
    r"""The KL divergence of :math:`N(0, QQ^T)` from :math:`N(0, I)` to second order,

    .. math:: \tfrac14\|(Q^TQ)^{-1} - I\|_F^2 = \tfrac14\sum_j(\mu_j - 1)^2.

    With :math:`Q = L^{-1}F`, :math:`G = FF^T` and :math:`K = LL^T`, the :math:`\mu_j` are the
    eigenvalues of :math:`G^{-1}K`, and the divergence
    :math:`\tfrac12\sum_j(\mu_j^{-1} + \log\mu_j - 1)` has this expansion at :math:`\mu_j = 1`.
    """
    inverse = inverse_of_square(spread)
    identity = torch.eye(spread.shape[-1], dtype=spread.dtype, device=spread.device)
    return 0.25 * (inverse @ inverse.mT - identity).square().sum((-2, -1))


def gaussian_kl(covariance: Float[Tensor, "P P"], prior: Float[Tensor, "P P"]) -> Float[Tensor, ""]:
    r""":math:`D_{KL}(N(0, G) \| N(0, K))` (Eq. 5) from the two matrices themselves."""
    factor = cholesky(covariance, "the covariance G")
    inverse = factorised(prior, "the prior covariance K")[1]
    return whitened_kl(inverse @ factor, triangular=True)


def normal_log_density(
    factor: Float[Tensor, "*batch P P"], white: Float[Tensor, "*batch P M"]
) -> Float[Tensor, "*batch"]:
    r""":math:`\sum_\lambda \log N(y_\lambda; 0, L L^T)`, in nats.

    Args:
        factor: L, lower triangular.
        white: :math:`L^{-1} y_\lambda`, one a column.
    """
    size, columns = white.shape[-2:]
    log_det = 2 * log_abs_det(factor, triangular=True)
    constant = size * math.log(2 * math.pi)
    return -0.5 * (white.square().sum((-2, -1)) + columns * (log_det + constant))


def mix(
    matrix: Float[Tensor, "Q P"] | Float[Tensor, " P"] | Float[Tensor, ""] | None,
    blocks: Float[Tensor, "N P *space"],
    offset: Float[Tensor, " Q"] | None = None,
) -> Float[Tensor, "N Q *space"]:
    """Left-multiply the inducing axis of ``(N, P, *space)`` by a matrix ``(Q, P)``.

    A vector stands for a diagonal matrix, a number for a multiple of the identity, None for the
    identity. The matrix is cast to the precision of the data. After a matrix an ``offset`` ``(Q,)``
    may be added.
    """
    if matrix is None:
        return blocks
    matrix = matrix.to(blocks.dtype)
    space = blocks.shape[2:]
    if matrix.ndim < 2:
        return blocks * (matrix.reshape(-1, *(1,) * len(space)) if matrix.ndim else matrix)
    offset = None if offset is None else offset.to(blocks.dtype)
    if space and torch.compiler.is_compiling():  # one operation, where a program is exported
        return _POINT[len(space)](blocks, matrix.reshape(*matrix.shape, *(1,) * len(space)), offset)
    rows = product(as_rows(blocks), matrix, offset).to(blocks.dtype)
    return from_rows(rows, blocks.shape[0], space)


def left_multiply(matrix: Tensor, other: Tensor) -> Tensor:
    """``matrix @ other``; vectors stand for diagonal matrices, numbers for multiples of I."""
    if not (matrix.ndim and other.ndim):
        return matrix * other
    if matrix.ndim == 1:
        return matrix * other if other.ndim == 1 else matrix[:, None] * other
    return matrix * other if other.ndim == 1 else matrix @ other


def inner_products(
    left: Float[Tensor, "N1 P *space"], right: Float[Tensor, "N2 P *space"]
) -> Float[Tensor, "N1 N2 *space"]:
    """Inner products over the inducing axis, of every two images at the same place."""
    return torch.einsum("np...,mp...->nm...", left, right)


def explained(whitened: Float[Tensor, "N P *space"]) -> Float[Tensor, " N *space"]:
    """``|V|²``: squared norm over the inducing axis of ``(N, P, *space)``."""
    return whitened.square().sum(1)


def pivoted_cholesky_order(
    features: Float[Tensor, "candidates M"], count: int
) -> Int[Tensor, " count"]:
    r"""Indices of ``count`` rows that span the others best, chosen greedily.

    The pivots of a Cholesky factorisation of :math:`\Phi\Phi^T`: each is the row with the largest
    squared distance to the span of those chosen before. Rows that are left when the rank is
    exhausted follow in their own order.

    Args:
        features: :math:`\Phi`, ``(candidates, M)``.
    """
    candidates = features.shape[0]
    if count > candidates:
        raise InvalidInputError(f"cannot choose {count} inducing points from {candidates} patches")
    residual = features.square().sum(1)
    floor = 1e-10 * residual.max()
    chosen: list[int] = []
    columns = features.new_zeros(candidates, count)
    for step in range(count):
        pivot = int(residual.argmax())
        if residual[pivot] <= floor:
            break
        column = features @ features[pivot] - columns[:, :step] @ columns[pivot, :step]
        column = column / residual[pivot].sqrt()
        columns[:, step] = column
        residual = (residual - column.square()).clamp(min=0)
        residual[pivot] = 0
        chosen.append(pivot)
    taken = set(chosen)
    rest = (index for index in range(candidates) if index not in taken)
    chosen.extend(index for index, _ in zip(rest, range(count - len(chosen)), strict=False))
    return torch.tensor(chosen, device=features.device)


def standard_normal(shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """Standard normal numbers in float64, drawn on the CPU so that every device gets the same."""
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64, device="cpu")


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """``numerator / denominator``, and zero where the denominator is zero."""
    zero = denominator == 0
    return (numerator / denominator.masked_fill(zero, 1)).masked_fill(zero, 0)


def inverse_root(variance: Tensor) -> Tensor:
    """``variance^(-1/2)``, and zero where the variance is not positive, with its derivative."""
    zero = variance <= 0
    return variance.masked_fill(zero, 1).sqrt().reciprocal().masked_fill(zero, 0)


def safe_sqrt(value: Tensor) -> Tensor:
    """Square root of a number that is not negative, with derivative 0 at 0."""
    zero = value <= 0
    return value.masked_fill(zero, 1).sqrt().masked_fill(zero, 0)

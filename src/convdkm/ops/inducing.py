r"""Steps of the inducing chain, each one operation with a derivative written by hand.

The chain works on small float64 matrices, so that what it costs is the number of operations that
PyTorch has to start and to differentiate, not their arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from convdkm.numerics import (
    cholesky_factor,
    eigenvectors,
    gradient_of_factorised,
    inverse_of_lower,
    inverse_of_square,
    taylor_kl,
)
from convdkm.ops.scalars import Scalar, as_tensor, exponential, inverse_root, scalar
from convdkm.runtime.maps import product, summed_products, without_autocast

if TYPE_CHECKING:
    from jaxtyping import Float, Float64


def noisy(ii: Float64[Tensor, "P P"], relative: float, absolute: float) -> Float64[Tensor, "P P"]:
    r""":math:`G_{ii}` with :math:`(1+\epsilon_r) G_{xx} + \epsilon_a` on its diagonal."""
    result: Tensor = _Noisy.apply(ii, relative, absolute)
    return result


class _Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ii: Tensor, relative: float, absolute: float) -> Tensor:
        ctx.relative = relative
        result = ii.clone()
        result.diagonal().mul_(1 + relative).add_(absolute)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = grad.clone()
        grad.diagonal().mul_(1 + ctx.relative)
        return grad, None, None


def mixed(
    weight: Float64[Tensor, "Q P *places"], ii: Float64[Tensor, "P P"]
) -> Float64[Tensor, "Q Q"]:
    r""":math:`\tfrac1S \sum_s C_s G_{ii} C_s^T` for weights ``(Q, P, *places)`` (Eq. 17)."""
    result: Tensor = _Mixed.apply(weight, ii)
    return result


class _Mixed(torch.autograd.Function):
    r"""K from C and a symmetric G, and with the symmetric part of its gradient

    .. math:: \bar C_s = \tfrac2S \bar K C_s G, \qquad \bar G = \tfrac1S\sum_s C_s^T\bar K C_s.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ii: Tensor) -> Tensor:
        ctx.save_for_backward(weight, ii)  # which are kept anyway
        placed = _placed(weight)
        result = (placed @ ii).flatten(1) @ placed.flatten(1).T
        return (result + result.T).mul_(0.5 / placed.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        weight, ii = ctx.saved_tensors
        placed = _placed(weight)
        grad = (grad + grad.T).mul_(0.5 / placed.shape[1])
        pushed = (grad @ placed.flatten(1)).view_as(placed)
        by_weight = _like_weights((2 * pushed) @ ii, weight.shape)
        return by_weight, placed.flatten(0, 1).T @ pushed.flatten(0, 1)


def _placed(weight: Tensor) -> Tensor:
    """From ``(Q, P, *places)`` to ``(Q, S, P)``."""
    return weight.flatten(2).mT.contiguous()


def _like_weights(placed: Tensor, shape: torch.Size) -> Tensor:
    """From ``(Q, S, P)`` to ``(Q, P, *places)``.

    A single place, too, gets the strides of a new tensor: gradients are expected to have those of
    their parameters when several processes train.
    """
    return placed.mT.flatten(1).view(shape)


def gram_of_weights(weight: Float64[Tensor, "Q P *places"]) -> Float64[Tensor, "Q Q"]:
    r""":math:`\tfrac1S \sum_s \tilde C_s \tilde C_s^T`.

    It is :math:`\Gamma_{ii}` for weights relative to the incoming :math:`G_{ii} = LL^T`,
    :math:`C_s = \tilde C_s L^{-1}`, whatever the scales and correlations of the incoming inducing
    points.
    """
    result: Tensor = _GramOfWeights.apply(weight)
    return result


class _GramOfWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        flat = weight.flatten(1)
        return (flat @ flat.T).mul_(1 / weight[0, 0].numel())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (weight,) = ctx.saved_tensors
        pull = (grad + grad.T).mul_(1 / weight[0, 0].numel())
        return (pull @ weight.flatten(1)).view_as(weight)


def weights_of_data(  # noqa: PLR0917
    left: Float[Tensor, "R Q"] | None,
    weight: Float[Tensor, "Q P *places"],
    right: Float[Tensor, "P P"] | None,
    scale: Float[Tensor, ""] | None,
    times: float,
    dtype: torch.dtype,
) -> Float[Tensor, "_ P *places"]:
    """``times · scale · left · weight · right``, worked out in the precision of the data.

    What is None counts as one, or as the identity; ``times`` is a constant.
    """
    with without_autocast(weight):  # its factors may be much larger than their product
        result: Tensor = _WeightsOfData.apply(left, weight, right, scale, times, dtype)
    return result


class _WeightsOfData(torch.autograd.Function):
    r"""From gradients by the result :math:`W = f\,A\,C_s B`, with :math:`I_s = C_s B`,

    .. math:: \bar A = f \sum_s \bar W_s I_s^T, \qquad \bar C_s = f A^T \bar W_s B^T, \qquad
              \bar B = \sum_s C_s^T (f A^T \bar W_s).
    """

    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        left: Tensor | None,
        weight: Tensor,
        right: Tensor | None,
        scale: Tensor | None,
        times: float,
        dtype: torch.dtype,
    ) -> Tensor:
        factor: Any = times if scale is None else scalar(scale) * times
        narrow = _placed(weight.to(dtype))
        before = None if left is None else (left * factor).to(dtype)
        after = None if right is None else right.to(dtype)
        inner = narrow if after is None else _right_product(narrow, after)
        ctx.times, ctx.factor, ctx.wide, ctx.shape = times, factor, weight.dtype, weight.shape
        ctx.save_for_backward(before, narrow, after, inner)
        result = inner * factor if before is None else _left_product(before, inner)
        return result.mT.unflatten(2, weight.shape[2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        with without_autocast(grad):
            return _WeightsOfData._gradients(ctx, _placed(grad))

    @staticmethod
    def _gradients(ctx: Any, given: Tensor) -> Any:
        (before, narrow, after, inner), factor = ctx.saved_tensors, ctx.factor
        by_left = by_right = by_scale = None
        if before is None:
            by_inner = given * factor
            if ctx.needs_input_grad[3]:
                by_scale = (ctx.times * (given * inner).sum()).to(ctx.wide)
        else:
            products = summed_products(_columns(given), _columns(inner))
            by_left = products.to(ctx.wide) * factor
            if ctx.needs_input_grad[3]:
                # The sum of W̄ ⊙ W over f, where A is what stands beside f in W.
                by_scale = ctx.times * (products * before).sum().to(ctx.wide) / factor
            by_inner = _left_product(before.T, given)
        by_weight = by_inner
        if after is not None:
            by_right = summed_products(narrow.flatten(0, 1), by_inner.flatten(0, 1)).to(ctx.wide)
            by_weight = _right_product(by_inner, after.T)
        by_weight = _like_weights(by_weight, ctx.shape).to(ctx.wide)
        return by_left, by_weight, by_right, by_scale, None, None


def _right_product(placed: Tensor, matrix: Tensor) -> Tensor:
    """``placed · matrix``, for ``(Q, S, P)``."""
    return product(placed.flatten(0, 1), matrix.T).view(*placed.shape[:2], -1)


def _left_product(matrix: Tensor, placed: Tensor) -> Tensor:
    """``matrix · placed`` by the first axis of ``(Q, S, P)``."""
    return product(_columns(placed), matrix).T.reshape(-1, *placed.shape[1:])


def _columns(placed: Tensor) -> Tensor:
    """``(Q, S, P)`` as rows ``(S P, Q)``."""
    return placed.flatten(1).T.contiguous()


def normalised(
    ii: Float64[Tensor, "P P"], log_scale: Float64[Tensor, ""] | None, *, by_mean: bool
) -> tuple[Float64[Tensor, "P P"], Float64[Tensor, ""]]:
    r""":math:`n^2 G_{ii}` and :math:`n = \psi A^{-1/2}`, from log ψ; ψ is one if not given.

    A is the mean of the diagonal with ``by_mean``, and one without.
    """
    scaled, scale = _Normalised.apply(ii, log_scale, by_mean)
    return scaled, scale


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ii: Tensor, log_scale: Tensor | None, by_mean: bool
    ) -> tuple[Tensor, Tensor]:
        scale: Scalar = 1.0
        ctx.inverse = None
        if by_mean:
            scale = ctx.inverse = inverse_root(scalar(ii.diagonal().mean()))
        if log_scale is not None:
            scale = scale * exponential(scalar(log_scale))
        ctx.scale = scale
        ctx.save_for_backward(ii)
        ctx.set_materialize_grads(False)
        return ii * (scale * scale), as_tensor(scale, ii)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_result: Tensor | None, by_scale: Tensor | None) -> Any:
        (ii,), scale, inverse = ctx.saved_tensors, ctx.scale, ctx.inverse
        total: Scalar = 0.0 if by_scale is None else scalar(by_scale)
        if by_result is None:
            by_ii = torch.zeros_like(ii)
        else:
            total = total + 2 * scale * scalar((by_result * ii).sum())
            by_ii = by_result * (scale * scale)
        by_log = total * scale
        if inverse is not None:
            by_ii.diagonal().sub_(0.5 / len(ii) * by_log * inverse * inverse)
        return by_ii, as_tensor(by_log, ii) if ctx.needs_input_grad[1] else None, None


class LearnedGram(NamedTuple):
    r"""What a Gram layer makes of the kernel :math:`K_{ii} = L L^T` and its parameters.

    Attributes:
        ii: :math:`\tilde G_{ii} = \tilde F\tilde F^T`; :math:`G_{ii} = F F^T` where G is neither
            sampled nor noisy.
        whitening: L⁻¹, or EᵀL⁻¹ with an orthogonal E.
        spread: Q̃ = L⁻¹F̃, or EᵀQ̃.
        factor: F̃, ``(P, M)``.
        kl: :math:`D_{KL}(N(0, G_{ii}) \| N(0, K_{ii}))`, or its Taylor form, ``()``.
    """

    ii: Tensor
    whitening: Tensor
    spread: Tensor
    factor: Tensor
    kl: Tensor


def learned_gram(
    kernel: Float64[Tensor, "P P"],
    free: Float64[Tensor, "P P"],
    log_scale: Float64[Tensor, ""] | None = None,
    *,
    divisor: float = 1.0,
    whitened: bool = False,
    turned: bool = False,
    full: bool = False,
    sample: Float64[Tensor, "P samples"] | None = None,
    noise: float = 0.0,
    taylor: bool = False,
) -> LearnedGram:
    r"""Everything of a Gram layer that is free of data, with one backward pass for all of it.

    With :math:`R = \mathrm{tril}(\text{free})\,e^{\text{log\_scale}/2}/\text{divisor}`, without the
    tril where it is ``full``: F = R, or Q = R where it is ``whitened``. The divergence is
    :math:`\tfrac12(|Q|^2 - P) - \log|\det Q|`, or with ``taylor`` its expansion to second order
    :math:`\tfrac14\|(Q^TQ)^{-1} - I\|_F^2`.

    A ``sample`` Ξ ``(P, γ)`` and a ``noise`` λ put :math:`\tilde F = [F\Xi/\sqrt\gamma,
    \sqrt\lambda I]` in the place of F, in all but the divergence:
    :math:`\tilde G = \tfrac1\gamma F\Xi\Xi^TF^T + \lambda I`. No factorisation of it is needed.

    What the machine computes from L⁻¹ and Q together does not change if both are multiplied by the
    same orthogonal matrix. With ``turned`` they are multiplied by Eᵀ, the eigenvectors of
    :math:`QQ^T`, after which the rows of Q are orthogonal to each other. For the gradient E counts
    as a constant.
    """
    lower = cholesky_factor(kernel.detach(), "the kernel matrix K_ii")
    return LearnedGram(
        *_LearnedGram.apply(
            kernel, free, log_scale, lower, sample, divisor, whitened, turned, full, noise, taylor
        )
    )


class _LearnedGram(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        kernel: Tensor,
        free: Tensor,
        log_scale: Tensor | None,
        lower: Tensor,
        sample: Tensor | None,
        divisor: float,
        whitened: bool,
        turned: bool,
        full: bool,
        noise: float,
        taylor: bool,
    ) -> tuple[Tensor, ...]:
        del kernel
        scale: Scalar = 1 / divisor
        if log_scale is not None:
            scale = scale * exponential(0.5 * scalar(log_scale))
        learned = (free if full else free.tril()) * scale
        inverse = inverse_of_lower(lower)
        spread = learned if whitened else inverse @ learned
        factor = lower @ learned if whitened else learned
        if taylor:
            kl = taylor_kl(spread)
        else:
            if full:
                volume = torch.linalg.slogdet(spread).logabsdet
            else:
                volume = spread.diagonal().abs().log().sum()
            kl = (spread.square().sum() - len(spread)).mul_(0.5).sub_(volume)
        ctx.whitened, ctx.scale, ctx.full = whitened, scale, full
        ctx.noise, ctx.taylor = noise, taylor
        sampled, wide = factor, spread
        if sample is not None:
            root = sample * sample.shape[1] ** -0.5
            sampled, wide = factor @ root, spread @ root
        if noise:
            identity = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
            sampled = torch.cat([sampled, noise**0.5 * identity], 1)
            wide = torch.cat([wide, noise**0.5 * inverse], 1)
        turn = eigenvectors(wide @ wide.T) if turned else None
        ctx.save_for_backward(lower, inverse, spread, factor, turn, sample, sampled)
        ctx.set_materialize_grads(False)
        if turn is None:
            return sampled @ sampled.T, inverse, wide, sampled, kl
        return sampled @ sampled.T, turn.T @ inverse, turn.T @ wide, sampled, kl

    @staticmethod
    @once_differentiable
    def backward(  # noqa: PLR0917
        ctx: Any,
        by_ii: Tensor | None,
        by_inverse: Tensor | None,
        by_spread: Tensor | None,
        by_factor: Tensor | None,
        by_kl: Tensor | None,
    ) -> Any:
        lower, inverse, spread, factor, turn, sample, sampled = ctx.saved_tensors
        if turn is not None:
            by_inverse = None if by_inverse is None else turn @ by_inverse
            by_spread = None if by_spread is None else turn @ by_spread
        by_spread = torch.zeros_like(sampled) if by_spread is None else by_spread
        by_factor = torch.zeros_like(sampled) if by_factor is None else by_factor
        if by_ii is not None:
            by_factor = torch.addmm(by_factor, by_ii + by_ii.T, sampled)
        if ctx.noise:
            count = sampled.shape[1] - len(lower)
            pushed = by_spread[:, count:] * ctx.noise**0.5
            by_inverse = pushed if by_inverse is None else by_inverse + pushed
            by_spread, by_factor = by_spread[:, :count], by_factor[:, :count]
        if sample is not None:
            root = sample.T * sample.shape[1] ** -0.5
            by_spread, by_factor = by_spread @ root, by_factor @ root
        if by_kl is not None:
            weight = scalar(by_kl)
            if ctx.taylor:
                divided = inverse_of_square(spread)
                squared = divided @ divided.T
                by_spread = by_spread - divided.T @ (squared @ squared - squared) * weight
            elif ctx.full:
                by_spread = by_spread + spread * weight - inverse_of_square(spread).T * weight
            else:
                by_spread = by_spread + spread * weight
                by_spread.diagonal().sub_(spread.diagonal().reciprocal().mul_(weight))
        by_lower = None
        if ctx.whitened:
            learned, by_learned = spread, torch.addmm(by_spread, lower.T, by_factor)
            by_lower = by_factor @ spread.T
        else:
            learned, by_learned = factor, torch.addmm(by_factor, inverse.T, by_spread)
            pushed = by_spread @ factor.T
            by_inverse = pushed if by_inverse is None else by_inverse + pushed
        by_learned = by_learned if ctx.full else by_learned.tril()
        by_log_scale = None
        if ctx.needs_input_grad[2]:
            by_log_scale = 0.5 * (by_learned * learned).sum()
        by_kernel = gradient_of_factorised(lower, inverse, by_lower, by_inverse)
        return by_kernel, by_learned.mul_(ctx.scale), by_log_scale, *(None,) * 8

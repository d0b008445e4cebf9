r"""The top of the machine: a sparse Gaussian process on the final Gram (appendix D)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from convdkm.checks import check_choice, check_positive
from convdkm.choices import Covariance, KLForm, Parameterisation
from convdkm.errors import GramError
from convdkm.gram import INDUCING_DTYPE, Gram
from convdkm.layers.base import keep_dtype, require_inducing
from convdkm.numerics import (
    cholesky_factor,
    explained,
    factorised,
    inner_products,
    inverse_of_lower,
    mix,
    standard_normal,
    whitened_kl,
)
from convdkm.ops.base import Operation

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Marginals:
    """Gaussian marginals of the top-layer functions at every image.

    Attributes:
        mean: ``(N, outputs)``.
        variance: ``(N, 1)`` where all outputs share it, else ``(N, outputs)``; never negative.
    """

    mean: Float[Tensor, "N outputs"]
    variance: Float[Tensor, " N #outputs"]

    @property
    def num_outputs(self) -> int:
        return self.mean.shape[1]


class HeadPlan(Operation):
    """A head whose data-free part is worked out.

    Attributes:
        kl: :math:`D_{KL}(Q(f_\\lambda) \\| P(f_\\lambda))` of every output, ``(outputs,)``.
        whitening: ``L⁻¹``; None once a layer before has taken it over.
        mean: ``L⁻¹μ``, ``(outputs, P)``.
        spread: ``L⁻¹`` times a factor of A: ``(P, P)`` or ``(outputs, P, P)``.
    """

    first = "whitening"

    def __init__(
        self,
        kl: Float[Tensor, " outputs"],
        whitening: Float[Tensor, "P P"] | None,
        mean: Float[Tensor, "outputs P"],
        spread: Float[Tensor, "P P"] | Float[Tensor, "outputs P P"],
    ) -> None:
        self.kl, self.whitening, self.mean, self.spread = kl, whitening, mean, spread

    def marginals(self, it: Tensor, tt: Tensor) -> Marginals:
        r"""Mean :math:`K_{ti}K_{ii}^{-1}\mu_\lambda` and the variance of every image."""
        if it.ndim != 2:
            raise GramError(
                "the head takes a Gram without space, but the images still have places"
                f" {tuple(it.shape[2:])}; put GlobalAveragePool() or Flatten() before it"
            )
        white = mix(self.whitening, it)
        residual = (tt - explained(white)).clamp(min=0)
        mean = white @ self.mean.T.to(white.dtype)
        spread = self.spread.to(white.dtype)
        if spread.ndim == 2:
            learned = explained(white @ spread).unsqueeze(1)
        else:
            learned = torch.einsum("np,opq->noq", white, spread).square().sum(2)
        return Marginals(mean, residual.unsqueeze(1) + learned)

    def covariance(self, left: Tensor, right: Tensor, between: Tensor) -> Tensor:
        """Posterior covariance of the functions at two sets of images, ``(1|outputs, N1, N2)``."""
        white = [mix(self.whitening, it) for it in (left, right)]
        learned = [each @ self.spread.to(each.dtype) for each in white]
        residual = between - inner_products(*white)
        return residual + (learned[0] @ learned[1].mT).reshape(-1, *between.shape)


class GPHead(nn.Module):
    r"""Sparse Gaussian process, its inducing outputs having the approximate posterior

    .. math:: Q(F_i) = \prod_\lambda N(f_\lambda; \mu_\lambda, A_\lambda).

    With the incoming Gram as prior covariance K,

    .. math::
        E[f_t] &= K_{ti} K_{ii}^{-1} \mu_\lambda, \\
        \mathrm{Var}[f_t] &= k_{tt} - K_{ti}K_{ii}^{-1}K_{it}
                             + K_{ti}K_{ii}^{-1} A K_{ii}^{-1} K_{it}.

    Args:
        num_inducing: :math:`P_i` of the final Gram.
        num_outputs: number of classes, or of regression targets.
        covariance: one A ``"shared"`` by all outputs (the paper), or one ``"per-output"``.
        parameterisation: ``"direct"`` (the paper): μ, and R with A = R Rᵀ / P_i, both starting at
            standard normal; ``"whitened"``: mean and a factor of the covariance of
            :math:`L^{-1} f` with K_ii = L Lᵀ, starting at the prior.
        kl: the divergence :math:`D_{KL}(N(\mu, A) \| N(0, K))` itself (``"exact"``), or with the
            part that depends on A to second order about A = K (``"taylor"``),
            :math:`\tfrac12\mu^TK^{-1}\mu + \tfrac14\mathrm{tr}\,(A^{-1}K - I)^2`.
    """

    mean: Tensor
    factor: Tensor

    def __init__(
        self,
        num_inducing: int,
        num_outputs: int,
        *,
        covariance: Covariance = "shared",
        parameterisation: Parameterisation = "direct",
        kl: KLForm = "exact",
    ) -> None:
        super().__init__()
        check_positive(num_inducing=num_inducing, num_outputs=num_outputs)
        check_choice("covariance", covariance, Covariance)
        check_choice("parameterisation", parameterisation, Parameterisation)
        check_choice("kl", kl, KLForm)
        self.num_inducing, self.num_outputs = num_inducing, num_outputs
        self.covariance, self.parameterisation, self.kl = covariance, parameterisation, kl
        square = (num_inducing, num_inducing)
        batch = () if covariance == "shared" else (num_outputs,)
        self.mean = nn.Parameter(torch.empty(num_outputs, num_inducing, dtype=INDUCING_DTYPE))
        self.factor = nn.Parameter(torch.empty(*batch, *square, dtype=INDUCING_DTYPE))
        self.draw()

    @torch.no_grad()
    def draw(self, generator: torch.Generator | None = None) -> None:
        """Set the parameters to their starting values: standard normal, or the prior."""
        if self.parameterisation == "whitened":
            self.mean.zero_()
            self.factor.copy_(torch.eye(self.num_inducing).expand_as(self.factor))
        else:
            self.mean.copy_(standard_normal(self.mean.shape, generator))
            self.factor.copy_(standard_normal(self.factor.shape, generator))

    @torch.no_grad()
    def condition(
        self,
        gram: Gram,
        expected: Callable[[Marginals], Float[Tensor, " N"]],
        *,
        weight: float = 1.0,
        steps: int = 20,
    ) -> None:
        r"""Set Q to about the best there is for some images, with the Gram held fixed.

        From the prior, by steps of the natural gradient of
        :math:`w\sum_n E_n - \sum_\lambda D_{KL}`. With :math:`v_n = L^{-1}k_n`,
        :math:`g_n = w\,\partial E_n/\partial m_n` and
        :math:`h_n = -\tfrac{2w}{C}\,\partial E_n/\partial s_n^2` for C outputs, half the way to

        .. math:: \Lambda = I + \sum_n h_n v_n v_n^T, \qquad
                  \eta_\lambda = \sum_n (g_{n\lambda} + h_n m_{n\lambda})\, v_n,

        where :math:`L^{-1}f` has the covariance :math:`\Lambda^{-1}` and the means
        :math:`\Lambda^{-1}\eta`. See Khan and Lin, "Conjugate-computation variational inference"
        (2017).

        Args:
            gram: of the images.
            expected: expected log-probabilities :math:`E_n` of their targets under marginals.
            weight: w.
            steps: how many; none leaves the prior.
        """
        lower, inverse = factorised(gram.ii, "the prior covariance K_ii of the head")
        white = gram.it.to(INDUCING_DTYPE) @ inverse.T
        residual = (gram.tt.to(INDUCING_DTYPE) - explained(white)).clamp(min=0)
        identity = torch.eye(self.num_inducing, dtype=INDUCING_DTYPE, device=white.device)
        precision, shift = identity.clone(), torch.zeros_like(self.mean)
        spread, mean = identity, shift
        for _ in range(steps):
            with torch.enable_grad():
                m = (white @ mean.T).requires_grad_()
                s2 = (residual + explained(white @ spread)).unsqueeze(1).requires_grad_()
                total = weight * expected(Marginals(m, s2)).sum()
                by_mean, by_variance = torch.autograd.grad(total, (m, s2))
            h = (-2 / self.num_outputs * by_variance).clamp(min=0)
            precision.lerp_(identity + white.T @ (h * white), 0.5)
            shift = shift.lerp((by_mean + h * m.detach()).T @ white, 0.5)
            spread = inverse_of_lower(cholesky_factor(precision, "the head's precision")).T
            mean = shift @ spread @ spread.T
        if self.parameterisation == "direct":
            mean, spread = mean @ lower.T, self.divisor * (lower @ spread)
        self.mean.copy_(mean)
        self.factor.copy_(spread.expand_as(self.factor))

    @property
    def divisor(self) -> float:
        r"""What ``factor`` is divided by: :math:`\sqrt{P_i}` where it is direct, else 1."""
        return float(self.num_inducing) ** 0.5 if self.parameterisation == "direct" else 1.0

    def plan(self, ii: Tensor) -> HeadPlan:
        require_inducing(ii, self.num_inducing)
        _, whitening = factorised(ii, "the prior covariance K_ii of the head")
        mean, spread = self.mean, self.factor / self.divisor
        if self.parameterisation == "direct":
            mean, spread = mean @ whitening.T, whitening @ spread
        return HeadPlan(
            whitened_kl(spread, mean, taylor=self.kl == "taylor"), whitening, mean, spread
        )

    def forward(self, gram: Gram) -> Marginals:
        return self.plan(gram.ii).marginals(gram.it, gram.tt)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return super()._apply(keep_dtype(fn), recurse)

    def extra_repr(self) -> str:
        return (
            f"{self.num_inducing}, {self.num_outputs}, covariance={self.covariance!r},"
            f" parameterisation={self.parameterisation!r}"
            + f", kl={self.kl!r}"
            * (self.kl != "exact")
        )

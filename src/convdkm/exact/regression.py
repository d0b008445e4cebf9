r"""Gaussian process regression from a kernel matrix, without approximation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from convdkm.errors import InvalidInputError
from convdkm.gram import INDUCING_DTYPE
from convdkm.numerics import cholesky, explained, normal_log_density, whiten
from convdkm.prediction import RealPrediction


class GPRegression:
    r"""Exact regression on P points, the likelihood of the full-rank machine (appendix A.2).

    .. math:: P(Y) = \prod_\lambda N(y_\lambda; 0, K + \sigma^2 I)

    Everything is float64, and differentiable in the kernel and the noise.

    >>> import torch
    >>> from convdkm.exact import GPRegression
    >>> regression = GPRegression(torch.eye(2), torch.tensor([[1.0], [-1.0]]), noise=1.0)
    >>> regression.predict(torch.tensor([[1.0, 0.0]]), torch.ones(1)).mean
    tensor([[0.5000]], dtype=torch.float64)

    Args:
        kernel: K, the kernel matrix of the training points, ``(P, P)``.
        targets: Y, ``(P, outputs)``.
        noise: :math:`\sigma^2`, the variance of the noise.
    """

    def __init__(self, kernel: Tensor, targets: Tensor, noise: float | Tensor) -> None:
        if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
            raise InvalidInputError(f"the kernel must be (P, P), got {tuple(kernel.shape)}")
        if targets.ndim != 2 or len(targets) != len(kernel):
            raise InvalidInputError(
                f"a kernel of {len(kernel)} points needs targets of shape"
                f" ({len(kernel)}, outputs), got {tuple(targets.shape)}"
            )
        noise = torch.as_tensor(noise, dtype=INDUCING_DTYPE, device=kernel.device)
        if noise.ndim or not bool(0 < noise < math.inf):
            raise InvalidInputError(f"noise must be a positive, finite number, got {noise}")
        kernel, targets = kernel.to(INDUCING_DTYPE), targets.to(kernel.device, INDUCING_DTYPE)
        self.noise = noise
        self.factor = cholesky(
            kernel + torch.diag_embed(noise.expand(len(kernel))),
            "the covariance K + noise of the targets",
        )
        self.white_targets = whiten(self.factor, targets)

    @property
    def log_marginal_likelihood(self) -> Tensor:
        r""":math:`\sum_\lambda \log N(y_\lambda; 0, K + \sigma^2 I)`, in nats."""
        return normal_log_density(self.factor, self.white_targets)

    def predict(self, cross: Tensor, variance: Tensor) -> RealPrediction:
        r"""Posterior of new points.

        .. math::
            E[f_*] &= k_* (K + \sigma^2 I)^{-1} y_\lambda, \\
            \mathrm{Var}[f_*] &= k_{**} - k_* (K + \sigma^2 I)^{-1} k_*^T

        Args:
            cross: kernel between new and training points, ``(N, P)``.
            variance: kernel of each new point with itself, ``(N,)``.
        """
        if cross.ndim != 2 or cross.shape[1] != len(self.factor):
            raise InvalidInputError(
                f"the cross kernel must be (N, {len(self.factor)}), got {tuple(cross.shape)}"
            )
        if variance.shape != cross.shape[:1]:
            raise InvalidInputError(
                f"{len(cross)} new points need as many variances, got {tuple(variance.shape)}"
            )
        white = whiten(self.factor, cross.to(INDUCING_DTYPE).T).T
        mean = white @ self.white_targets
        left = (variance.to(INDUCING_DTYPE) - explained(white)).clamp(min=0)
        left = left.unsqueeze(1).expand_as(mean)
        return RealPrediction(mean, left, left + self.noise)

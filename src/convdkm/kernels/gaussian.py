r"""The normalised Gaussian kernel (Shankar et al., 2020; Mairal et al., 2014).

With :math:`a = G_{xx}`, :math:`b = G_{yy}`, :math:`c = G_{xy}`, :math:`h = \sqrt{ab}` and the
cosine :math:`\rho = c/h`,

.. math::
    k = h\,e^{\gamma(\rho - 1)}, \qquad
    \frac{\partial k}{\partial c} = \gamma\frac kh, \qquad
    \frac{\partial k}{\partial a} = \frac{k(1 - \gamma\rho)}{2a}, \qquad
    \frac{\partial k}{\partial\gamma} = k(\rho - 1).

Where cosines are small it is :math:`he^{-\gamma}(1 + \gamma\rho + \tfrac12\gamma^2\rho^2)`: its
quadratic part is :math:`\tfrac12\gamma\rho` of the linear one. That of the arc-cosine kernel of
order 1 is :math:`\rho/\pi` of it, so that with :math:`\gamma > 0.64` a machine is less linear.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from convdkm.elementwise import PIECEWISE, Engine, engine
from convdkm.gram import INDUCING_DTYPE
from convdkm.kernels.base import Kernel, KernelPlan, Positive
from convdkm.kernels.fused import FusedPlan
from convdkm.kernels.pointwise import Pointwise, PointwiseGradient
from convdkm.layers.base import Plan, keeps
from convdkm.numerics import inverse_root, safe_divide, safe_sqrt
from convdkm.scalars import as_tensor, scalar


class NormalisedGaussian(Kernel):
    r"""Normalised Gaussian kernel (Shankar et al., 2020).

    .. math:: k(x, y) = |x||y| \exp\left(\gamma\left(\frac{G_{xy}}{|x||y|} - 1\right)\right),
              \qquad |x| = \sqrt{G_{xx}}

    It keeps the norm of its input, :math:`k(x, x) = G_{xx}`, and is zero where an input is zero.

    Args:
        gamma: γ; the larger, the less linear.
        learn: learn γ.

    Attributes:
        compiled: see :meth:`convdkm.DeepKernelMachine.compile_elementwise`.
    """

    def __init__(self, gamma: float = 1.0, *, learn: bool = False) -> None:
        super().__init__()
        self.gamma = Positive("gamma", gamma, learn=learn)
        self.compiled = False

    def of(self, cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
        norm = safe_sqrt(left) * safe_sqrt(right)
        zero = norm == 0
        cosine = (cross / norm.masked_fill(zero, 1)).clamp(-1, 1)
        return norm * ((cosine - 1) * self.gamma(cross)).exp()

    def variance(self, own: Tensor) -> Tensor:
        return own

    def plan(self, ii: Tensor) -> Plan:
        fused = keeps(self, NormalisedGaussian, "of", "variance")
        return GaussianPlan(self, ii) if fused else KernelPlan(self, ii)


class _InducingGaussian(torch.autograd.Function):
    """The kernel of a symmetric matrix of inner products; it keeps the diagonal."""

    @staticmethod
    def forward(ctx: Any, ii: Tensor, gamma: Tensor) -> Tensor:
        own, ctx.gamma = ii.diagonal(), scalar(gamma)
        root, inverse = own.clamp(min=0).sqrt(), inverse_root(own)
        cosine = (ii * inverse).mul_(inverse[:, None]).clamp_(max=1)
        value = cosine.sub(1).mul_(ctx.gamma).exp_().mul_(root).mul_(root[:, None])
        value.diagonal().copy_(own)
        ctx.save_for_backward(ii, cosine, value, inverse)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        ii, cosine, value, inverse = ctx.saved_tensors
        weighted = grad * value
        weighted.diagonal().zero_()
        by_gamma = (weighted * (cosine - 1)).sum() if ctx.needs_input_grad[1] else None
        result = (weighted * inverse).mul_(inverse[:, None]).mul_(ctx.gamma)
        weighted = weighted.addcmul_(result, ii, value=-1)
        shared = (weighted.sum(0) + weighted.sum(1)).mul_(0.5)
        result.diagonal().copy_(grad.diagonal() + safe_divide(shared, ii.diagonal()))
        return result, by_gamma


class GaussianPlan(FusedPlan):
    """The kernel, and white noise after it."""

    def __init__(self, kernel: NormalisedGaussian, ii: Tensor) -> None:
        self.gaussian, self.gamma = kernel, kernel.gamma(ii)
        super().__init__(kernel, ii)

    def inside(self, ii: Tensor) -> Tensor:
        result: Tensor = _InducingGaussian.apply(ii, self.gamma)
        return result

    def pointwise(self) -> Pointwise:
        return GaussianPointwise(self.gamma, engine(compiled=self.gaussian.compiled))


class GaussianPointwise:
    """The kernel of rows, see :class:`convdkm.kernels.pointwise.Pointwise`."""

    def __init__(self, gamma: Tensor, engine: Engine = PIECEWISE) -> None:
        self.parameters: tuple[Tensor | None, ...] = (gamma,)
        self.engine = engine
        self.gamma = scalar(gamma.detach())

    def value(self, cross: Tensor, inducing: Tensor, own: Tensor) -> Tensor:
        return self.engine.gaussian(cross, inducing, own, as_tensor(self.gamma, cross))

    def gradient(
        self, grad: Tensor, value: Tensor, blocks: tuple[Tensor, Tensor, Tensor], *, learned: bool
    ) -> PointwiseGradient:
        gamma = as_tensor(self.gamma, grad)
        found = self.engine.gaussian_gradient(grad, value, blocks, gamma)
        by_gamma = None
        if learned:
            # Σ grad · k · ρ is Σ by_cross · c / γ.
            by_cosine = (found.cross * blocks[0]).sum() / gamma
            by_gamma = (by_cosine - (grad * value).sum()).to(INDUCING_DTYPE)
        return PointwiseGradient(*found, (by_gamma,))

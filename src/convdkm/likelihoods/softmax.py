r"""Expectations of the softmax of independent normal functions, by one integral.

With :math:`f_c \sim N(m_c, s_c^2)` and standard Gumbel numbers :math:`g_c`, the largest of all
:math:`f_c + g_c` is, given f, :math:`\log\sum_c e^{f_c}` plus a Gumbel number, and it is that of
class c with the probability :math:`p_c = \mathrm{softmax}(f)_c`. So, however many classes there
are, with F_c the distribution function of :math:`f_c + g_c` (:mod:`convdkm.likelihoods.gumbel`) and
:math:`r_c = F_c'/F_c`,

.. math::
    E\Big[\log\sum_c e^{f_c}\Big] &= a - \gamma
        + \int \Big(\mathbf 1[x > a] - \prod_c F_c(x)\Big)\,dx, \\
    E[p_c] &= \int r_c(x)\prod_{c'} F_{c'}(x)\,dx, \\
    E[p_c(1-p_c)] &= \int r_c(x)\sum_{d\neq c}r_d(x)\prod_{c'} F_{c'}(x)\,dx.

The latter two are the derivatives of the first: by :math:`m_c`, and, halved, by :math:`s_c^2`.
The rule is that of equal steps, which is as good as any for smooth functions that fade at both
ends, in a variable in which nodes are as close as the narrowest class that matters asks for.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from convdkm.likelihoods.gumbel import LEFT, RIGHT, left_end, level, level_table, right_end
from convdkm.runtime.maps import pieces, without_autocast

NODES, FEWEST = 64, 48
"""Nodes by default, and at least."""

PIECE = 1 << 16
"""Numbers (images × nodes × classes) that are worked on at a time on a CPU."""

Moments = tuple[Tensor, Tensor, Tensor]
_EULER = 0.5772156649015329
_WIDENING = 2.0
"""Nodes are at equal distances up to about as many times the way from the first to the mean."""


class NormalSoftmax(nn.Module):
    """Expectations of the softmax of independent normal functions.

    Args:
        nodes: their number; no fewer than :data:`FEWEST` are used.
    """

    table: Tensor
    places: Tensor

    def __init__(self, nodes: int = NODES) -> None:
        super().__init__()
        self.nodes = nodes
        count = max(nodes, FEWEST)
        places = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        self.register_buffer("table", level_table(), persistent=False)
        self.register_buffer("places", places, persistent=False)

    def log_sum_exp(self, mean: Tensor, variance: Tensor) -> Tensor:
        r""":math:`E[\log\sum_c e^{f_c}]` of every image, ``(N,)``, with its derivatives.

        Means are ``(N, classes)``, variances ``(N, 1)`` or ``(N, classes)``.
        """
        result: Tensor = _LogSumExp.apply(mean, variance, self)
        return result

    def forward(self, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probabilities of the classes, ``(N, classes)``, and the expected entropy.

        Means are ``(N, classes)``, standard deviations ``(N, 1)`` or ``(N, classes)``.
        """
        log_sum_exp, log_probs, class_variance = self.moments(mean, deviation)
        top = mean.amax(1, keepdim=True)
        certain = ((mean - top) * log_probs.exp() + deviation.square() * class_variance).sum(1)
        entropy = log_sum_exp - top.squeeze(1) - certain
        return log_probs, entropy.clamp(0.0, math.log(mean.shape[1]))

    def moments(self, mean: Tensor, deviation: Tensor) -> Moments:
        r""":math:`E[\log\sum_c e^{f_c}]`, :math:`\log E[p_c]` and :math:`E[p_c(1-p_c)]`."""
        dtype = torch.promote_types(mean.dtype, torch.float32)
        mean, deviation = mean.to(dtype), deviation.to(dtype)
        with without_autocast(mean):
            if torch.compiler.is_compiling() or not len(mean):
                return self._moments(mean, deviation)
            parts = [
                self._moments(mean[part], deviation[part])
                for part in pieces(mean, PIECE // len(self.places))
            ]
        if len(parts) == 1:
            return parts[0]
        log_sum_exp, log_probs, class_variance = map(torch.cat, zip(*parts, strict=True))
        return log_sum_exp, log_probs, class_variance

    def _moments(self, mean: Tensor, deviation: Tensor) -> Moments:
        top = mean.amax(1, keepdim=True)
        mean, deviation = (mean - top).unsqueeze(1), deviation.unsqueeze(1)
        certain = torch.logsumexp(mean, 2)
        start, first = (mean + left_end(deviation)).max(2)
        length = (mean + right_end(deviation)).amax(2) + certain - start
        # Classes that matter at a distance from the start are about as wide as it, or wider.
        scale = _WIDENING * (mean.gather(2, first.unsqueeze(2)).squeeze(2) - start)
        end = torch.asinh(length / scale)
        places = self.places.to(mean.dtype) * end
        nodes = start + scale * torch.sinh(places)
        weights = torch.cosh(places) * (scale * end / len(self.places))

        height, slope = level(nodes.unsqueeze(2) - mean, deviation, self.table)
        # Rates F'/F of rare classes are too small for a number: they are kept relative to e^-low.
        low = height[:, :1]
        unit = torch.exp(-low)
        decay = torch.exp(low - height)
        chance = torch.exp(-(decay * unit).sum(2))
        # A Gumbel number of about that place and width, whose mean is known: it takes the place of
        # the step 1[x > a], and is all there is where there is no variance.
        width = length / (LEFT[0] + RIGHT[0] + certain)
        centre = start + LEFT[0] * width + certain
        known = torch.exp(-torch.exp((centre - nodes) / width))
        gained = (weights * (known - chance)).sum(1, keepdim=True)
        log_sum_exp = top + centre + (width - 1) * _EULER + gained

        mass = (weights * chance).unsqueeze(2)
        rate = decay * slope
        log_probs = (mass * rate).sum(1).log() - low.squeeze(1)
        rate = rate * unit
        others = rate.sum(2, keepdim=True) - rate
        class_variance = (mass * rate * others).sum(1)
        return log_sum_exp.squeeze(1), log_probs.log_softmax(1), class_variance


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, softmax: NormalSoftmax) -> Tensor:
        log_sum_exp, log_probs, class_variance = softmax.moments(mean, variance.sqrt())
        by_variance = class_variance / 2
        if variance.shape[1] == 1:
            by_variance = by_variance.sum(1, keepdim=True)
        ctx.save_for_backward(log_probs.exp(), by_variance)
        ctx.dtype = mean.dtype
        return log_sum_exp

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        by_mean, by_variance = ctx.saved_tensors
        grad = grad.unsqueeze(1)
        return (grad * by_mean).to(ctx.dtype), (grad * by_variance).to(ctx.dtype), None

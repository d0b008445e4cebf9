r"""A training step of the paper's equations, as a careful reader would write them down.

Everything is float64 and differentiated automatically. Inverses stand where the paper has them, the
kernel is computed from the angle, every sample of the likelihood is drawn. Nothing is merged,
whitened or kept; but nothing loops over pixels, images or inducing points either.

It shares no code with the machine, only the names and values of its parameters, and the settings
of the published runs (:data:`convdkm.PUBLISHED`). So it is two things: what the machine's speed is
measured against, and an independent statement of what the machine computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

JITTER = 1e-4
"""Relative and absolute white noise before and after every kernel."""
SAMPLES = 1000
"""Monte-Carlo samples of the categorical likelihood."""


class Blocks(NamedTuple):
    """A Gram or kernel matrix (Eq. 6): ``(P, P)``, ``(N, P, H, W)`` and ``(N, H, W)``.

    Of the block tt only the diagonal is kept (appendix E.2). Without space the last two are
    ``(N, P)`` and ``(N,)``.
    """

    ii: Tensor
    it: Tensor
    tt: Tensor


class Textbook:
    """The residual machine of the published runs.

    Args:
        model: the machine whose parameters it copies, in float64.
        strides: of the first block of every stage.
        nu: weight of every Gram layer's KL.

    Attributes:
        named: the parameters, by their names in the model.
    """

    def __init__(self, model: nn.Module, strides: Sequence[int], nu: float) -> None:
        self.strides, self.nu = strides, nu
        self.named = {
            name: parameter.detach().double().clone().requires_grad_()
            for name, parameter in model.named_parameters()
        }

    def objective(
        self, images: Tensor, labels: Tensor, num_data: int, noise: Tensor | None = None
    ) -> Tensor:
        r"""The mini-batch objective of appendix D, to be maximised.

        .. math:: \mathcal L = \tfrac1B\sum_{p} E_Q[\log P(y_p|f_p)]
                  - \tfrac1{N}\left[D_{KL}^{head} + \sum_\ell \nu_\ell D_{KL}^\ell\right]

        Args:
            images: ``(B, C, H, W)`` in float64.
            labels: ``(B,)``.
            num_data: N, the size of the training set.
            noise: standard normal numbers for the likelihood, ``(samples, classes)`` for all images
                alike or ``(B, samples, classes)``; fresh ones for each if not given.
        """
        divergences: list[Tensor] = []
        gram = self.layer(self.input(images), "body.stem", 1, divergences)
        for stage, stride in enumerate(self.strides, 1):
            number = 1
            while f"body.stage{stage}.block{number}.body.first.conv.weight" in self.named:
                name = f"body.stage{stage}.block{number}"
                gram = self.block(gram, name, stride if number == 1 else 1, divergences)
                number += 1
        gram = self.normalise(global_average_pool(gram), "body.norm")
        mean, variance, head_kl = self.head(gram)
        expected = expected_log_likelihood(mean, variance, labels, noise)
        regulariser = self.nu * torch.stack(divergences).sum()
        return expected.mean() - (head_kl + regulariser) / num_data

    def input(self, images: Tensor) -> Blocks:
        """The Gram of the patches of images and of the inducing patches (Sec. 5)."""
        patches = self.named["input.inducing"]
        size = patches[0].numel()
        ii = torch.einsum("icd,jcd->ij", patches.flatten(2), patches.flatten(2)) / size
        it = F.conv2d(images, patches, padding=1) / size
        return Blocks(ii, it, local_mean(images.square().mean(1), 3, 1))

    def block(self, gram: Blocks, name: str, stride: int, divergences: list[Tensor]) -> Blocks:
        """Two layers and the way round them, half and half."""
        body = self.layer(gram, f"{name}.body.first", stride, divergences)
        body = self.layer(body, f"{name}.body.second", 1, divergences)
        short = gram
        if f"{name}.shortcut.conv.weight" in self.named:
            short = self.convolve(gram, f"{name}.shortcut.conv", stride)
            short = self.normalise(short, f"{name}.shortcut.norm")
        return Blocks(*(0.5 * one + 0.5 * other for one, other in zip(short, body, strict=True)))

    def layer(self, gram: Blocks, name: str, stride: int, divergences: list[Tensor]) -> Blocks:
        """Kernel, convolution, learned Gram and normalisation."""
        kernel = self.convolve(self.kernel(gram, f"{name}.kernel.0.kernel"), f"{name}.conv", stride)
        learned, divergence = self.gram_layer(kernel, f"{name}.gram")
        divergences.append(divergence)
        return self.normalise(learned, f"{name}.norm")

    def kernel(self, gram: Blocks, name: str) -> Blocks:
        r"""The first-order arc-cosine kernel, :math:`\sigma_w^2 k_1 + \sigma_b^2`, with jitter.

        .. math:: k_1(x, y) = \tfrac1\pi |x||y| (\sin\theta + (\pi-\theta)\cos\theta), \qquad
                  \cos\theta = G_{xy} / (|x||y|)
        """
        weight = self.named[f"{name}.weight_variance.log_value"].exp()
        bias = self.named[f"{name}.bias_variance.log_value"].exp()
        ii, it, tt = jittered(gram)
        variance = ii.diagonal()
        # The angle of a point to itself is zero, where acos has no derivative.
        itself = torch.eye(len(ii), dtype=torch.bool, device=ii.device)
        apart = arccosine(ii.masked_fill(itself, 0.0), variance[:, None], variance[None, :])
        omega_ii = weight * torch.where(itself, ii, apart) + bias
        omega_it = weight * arccosine(it, variance[:, None, None], tt[:, None]) + bias
        return jittered(Blocks(omega_ii, omega_it, weight * gram.tt + bias))

    def convolve(self, omega: Blocks, name: str, stride: int) -> Blocks:
        r"""The convolution :math:`\Gamma` with mixing weights C (Eq. 11, 18 and 19)."""
        C = self.named[f"{name}.weight"]
        C = C / C.shape[1] ** 0.5
        size = C.shape[-1]
        D = size**2
        flat = C.flatten(2)
        gamma_ii = torch.einsum("imd,mn,jnd->ij", flat, omega.ii, flat) / D
        gamma_it = F.conv2d(omega.it, C / D, stride=stride, padding=size // 2)
        return Blocks(gamma_ii, gamma_it, local_mean(omega.tt, size, stride))

    def gram_layer(self, kernel: Blocks, name: str) -> tuple[Blocks, Tensor]:
        r"""Predict the Gram from the learned :math:`G_{ii}`, and the KL of Eq. 7.

        .. math::
            G_{it} = G_{ii} K_{ii}^{-1} K_{it}, \quad
            g_{tt} = k_{tt} - K_{ti} K_{ii}^{-1} K_{it}
                     + K_{ti} K_{ii}^{-1} G_{ii} K_{ii}^{-1} K_{it}
        """
        V = self.named[f"{name}.factor"]
        G_ii = self.named[f"{name}.log_scale"].exp() * (V @ V.T) / len(V)
        K_inverse, K_log_det = inverse_and_log_det(kernel.ii)
        _, G_log_det = inverse_and_log_det(G_ii)
        divergence = 0.5 * ((K_inverse * G_ii).sum() - len(G_ii) + K_log_det - G_log_det)

        K_it = kernel.it.flatten(2)
        solved = K_inverse @ K_it
        G_it = G_ii @ solved
        g_tt = kernel.tt.flatten(1) - (K_it * solved).sum(1) + (solved * G_it).sum(1)
        return Blocks(G_ii, G_it.view_as(kernel.it), g_tt.view_as(kernel.tt)), divergence

    def normalise(self, gram: Blocks, name: str) -> Blocks:
        r"""Kernel batch normalisation and scaling of both blocks (appendix C)."""
        psi = self.named[f"{name}.log_inducing_scale"].exp()
        Psi = self.named[f"{name}.log_data_scale"].exp()
        a, A = gram.ii.diagonal().mean().sqrt(), gram.tt.mean().sqrt()
        return Blocks(
            gram.ii * psi**2 / a**2, gram.it * (psi * Psi / (a * A)), gram.tt * Psi**2 / A**2
        )

    def head(self, kernel: Blocks) -> tuple[Tensor, Tensor, Tensor]:
        r"""Mean, variance, and the KL of the sparse Gaussian process on top (appendix D).

        .. math:: E[f_t] = K_{ti} K_{ii}^{-1} \mu_\lambda, \quad
                  Var[f_t] = k_{tt} - K_{ti}K_{ii}^{-1}K_{it} + K_{ti}K_{ii}^{-1}AK_{ii}^{-1}K_{it}

        The KL is the mean over the outputs, as in the published runs.
        """
        mu, R = self.named["head.mean"], self.named["head.factor"]
        size = len(R)
        A = R @ R.T / size
        K_inverse, K_log_det = inverse_and_log_det(kernel.ii)
        _, A_log_det = inverse_and_log_det(A)
        quadratic = (mu @ K_inverse * mu).sum(1)
        divergences = 0.5 * ((K_inverse * A).sum() + quadratic - size + K_log_det - A_log_det)
        solved = kernel.it @ K_inverse
        explained = (solved * kernel.it).sum(1)
        variance = kernel.tt - explained + (solved @ A * solved).sum(1)
        return solved @ mu.T, variance, divergences.mean()


def jittered(gram: Blocks) -> Blocks:
    """The Gram with a little relative and absolute white noise."""
    noise = JITTER * gram.ii.diagonal() + JITTER
    return Blocks(gram.ii + torch.diag(noise), gram.it, (1 + JITTER) * gram.tt + JITTER)


def arccosine(cross: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """First-order arc-cosine kernel of two points, from their Gram."""
    lengths = (left * right).sqrt()
    cosine = cross / lengths
    angle = torch.acos(cosine)
    return lengths * (torch.sin(angle) + (math.pi - angle) * cosine) / math.pi


def local_mean(tt: Tensor, size: int, stride: int) -> Tensor:
    """Mean of ``(N, H, W)`` over every filter's places inside the image."""
    return F.avg_pool2d(tt, size, stride, padding=size // 2, count_include_pad=False)


def inverse_and_log_det(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse and log-determinant of a positive definite matrix, by Cholesky."""
    factor = torch.linalg.cholesky(matrix)
    return torch.cholesky_inverse(factor), 2 * factor.diagonal().log().sum()


def global_average_pool(gram: Blocks) -> Blocks:
    r"""Average over all places, with the corrected Nyström approximation (appendix E.3).

    .. math:: \Lambda_{it} = \tfrac1S\sum_s G_{it,s}, \quad
              \lambda_{tt} = \Lambda_{ti} G_{ii}^{-1} \Lambda_{it} + \tfrac1{S^2}\sum_s D_s
    """
    inverse, _ = inverse_and_log_det(gram.ii)
    it, tt = gram.it.flatten(2), gram.tt.flatten(1)
    D = tt - (it * (inverse @ it)).sum(1)
    pooled = it.mean(2)
    correction = D.sum(1) / tt.shape[1] ** 2
    return Blocks(gram.ii, pooled, (pooled @ inverse * pooled).sum(1) + correction)


def expected_log_likelihood(
    mean: Tensor, variance: Tensor, labels: Tensor, noise: Tensor | None = None
) -> Tensor:
    r""":math:`E_Q[f_y] - E_Q[\log\sum_\lambda e^{f_\lambda}]` of every image (appendix D.2.2)."""
    if noise is None:
        noise = torch.randn(len(mean), SAMPLES, mean.shape[1], dtype=mean.dtype, device=mean.device)
    functions = mean[:, None] + variance.sqrt()[:, None, None] * noise
    normaliser = torch.logsumexp(functions, 2).mean(1)
    return mean.gather(1, labels[:, None])[:, 0] - normaliser

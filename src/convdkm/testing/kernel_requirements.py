"""What a kernel must fulfil beside being a layer: one function for each requirement."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from convdkm.gram import INDUCING_DTYPE
from convdkm.kernels.base import Kernel
from convdkm.testing.outcome import (
    gradient,
    require_close,
    require_derivative,
    require_finite,
    require_not_negative,
)

EQUAL = 1e-7
"""Allowed difference, relative to the largest entry: the root of an error of 1e-15 passes."""

DERIVATIVE = 1e-6
"""Allowed error of a finite difference, relative to the largest derivative."""


class KernelCase:
    """A kernel with points to try it on.

    Args:
        tried: the kernel.
        width: dimensions of the points.
        seed: of the random numbers that are drawn.
        zero: whether the kernel can take the point zero; it is then among the points.
    """

    def __init__(self, tried: Kernel, width: int, seed: int, zero: bool) -> None:
        self.tried, self.seed, self.zero = tried, seed, zero
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(8, width, generator=generator, dtype=INDUCING_DTYPE)
        # An equal pair, an opposite pair, one twice as long, and zero.
        points = [drawn, drawn[:1], -drawn[1:2], 2 * drawn[2:3]]
        if zero:
            points.append(torch.zeros_like(drawn[:1]))
        self.points = torch.cat(points)

    def blocks(self) -> tuple[Tensor, Tensor, Tensor]:
        """``G_xy`` of every pair of points, ``G_xx`` as a column and ``G_yy`` as a row."""
        gram = self.points @ self.points.T / self.points.shape[1]
        return gram, gram.diagonal()[:, None], gram.diagonal()[None, :]

    def matrix(self) -> tuple[Tensor, Tensor]:
        """The kernel of every pair of points, and its variance at every point."""
        gram, left, right = self.blocks()
        return self.tried.of(gram, left, right).detach(), self.tried.variance(right[0]).detach()

    def regular(self) -> tuple[Tensor, Tensor, Tensor]:
        """``G_xy``, ``G_xx`` and ``G_yy`` of pairs that are neither parallel nor zero, ``(n,)``."""
        generator = torch.Generator().manual_seed(self.seed)
        left, right, cosine = torch.rand(3, 24, generator=generator, dtype=INDUCING_DTYPE)
        left, right, cosine = 0.3 + 2 * left, 0.3 + 2 * right, 1.8 * cosine - 0.9
        return cosine * (left * right).sqrt(), left, right

    def singular(self, dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """Arguments at which careless derivatives are NaN, by name."""
        a = torch.tensor([0.1, 1.0, 7.0], dtype=dtype)
        rounding = 1 + 4 * torch.finfo(dtype).eps
        pairs = {
            "equal points": (a, a, a),
            "opposite points": (-a, a, a),
            "parallel points": (2 * a, a, 4 * a),
            "equal points, with rounding": (rounding * a, a, a),
            "opposite points, with rounding": (-rounding * a, a, a),
        }
        if self.zero:
            nothing = torch.zeros_like(a)
            pairs["zero and another point"] = (nothing, nothing, a)
            pairs["zero and zero"] = (nothing, nothing, nothing)
        return pairs


def variance_is_the_diagonal(case: KernelCase) -> None:
    """``variance(a)`` is ``of(a, a, a)``."""
    a = case.blocks()[0].diagonal()
    what = "variance(a) and of(a, a, a)"
    require_close(case.tried.variance(a), case.tried.of(a, a, a), EQUAL, what)


def symmetric_in_its_arguments(case: KernelCase) -> None:
    """``k(x, y) = k(y, x)``."""
    cross, left, right = case.blocks()
    swapped = case.tried.of(cross, right, left)
    require_close(swapped, case.tried.of(cross, left, right), EQUAL, "k(x, y) and k(y, x)")


def bounded_by_variances(case: KernelCase) -> None:
    """``k(x, y)² ≤ k(x, x) k(y, y)``, the inequality of Cauchy and Schwarz."""
    values, variances = case.matrix()
    bound = torch.outer(variances, variances)
    what = "k(x,x)·k(y,y) − k(x,y)²"
    require_not_negative(bound - values.square(), EQUAL * bound.max(), what)


def positive_semidefinite_on_points(case: KernelCase) -> None:
    """No eigenvalue of the kernel matrix of any points, equal or opposite or zero, is negative."""
    values, variances = case.matrix()
    matrix = torch.diagonal_scatter(0.5 * (values + values.T), variances)
    eigenvalues = torch.linalg.eigvalsh(matrix)
    what = "smallest eigenvalue of a kernel matrix"
    require_not_negative(eigenvalues.min(), EQUAL * eigenvalues.abs().max(), what)


def derivatives_agree_with_differences(case: KernelCase) -> None:
    """Derivatives by every argument and every parameter are those of finite differences."""
    kernel = case.tried
    arguments = [value.clone().requires_grad_() for value in case.regular()]
    named = zip(("cross", "left", "right"), arguments, strict=True)
    for name, source in (*named, *kernel.named_parameters()):
        require_derivative(lambda: kernel.of(*arguments), source, DERIVATIVE, f"of by {name}")
    for name, source in (("own", arguments[1]), *kernel.named_parameters()):
        value = partial(kernel.variance, arguments[1])
        require_derivative(value, source, DERIVATIVE, f"variance by {name}")


def finite_at_singular_points(case: KernelCase) -> None:
    """Values and derivatives are finite where points coincide, oppose each other, or are zero.

    Also where rounding makes ``G_xy²`` a little larger than ``G_xx G_yy``.
    """
    for dtype in (torch.float32, torch.float64):
        for name, arguments in case.singular(dtype).items():
            leaves = [value.clone().requires_grad_() for value in arguments]
            value = case.tried.of(*leaves)
            require_finite(value, f"of ({name}, {dtype})")
            for leaf, argument in zip(leaves, ("cross", "left", "right"), strict=True):
                what = f"the derivative of of by {argument} ({name}, {dtype})"
                require_finite(gradient(case.tried.of(*leaves), leaf), what)


KERNEL_REQUIREMENTS: tuple[Callable[[KernelCase], None], ...] = (
    symmetric_in_its_arguments,
    variance_is_the_diagonal,
    bounded_by_variances,
    positive_semidefinite_on_points,
    finite_at_singular_points,
    derivatives_agree_with_differences,
)

r"""The deep Gaussian process of finite width, written in Gram matrices (appendices A.1 to A.4).

Layer ℓ has :math:`N_\ell` features at P points, and
:math:`G^\ell = \tfrac1{N_\ell} F^\ell (F^\ell)^T` is Wishart given the layer below. With D the
divergence :math:`D_{KL}(N(0, G^\ell) \| N(0, K(G^{\ell-1})))`, its log-density (appendix A.2) is

.. math::
    \log P(G^\ell | G^{\ell-1}) = -N_\ell D - \tfrac{P+1}2 \log|G^\ell| + c(N_\ell), \qquad
    c(N) = \tfrac{NP}2 \left(\log\tfrac N2 - 1\right) - \log\Gamma_P\!\left(\tfrac N2\right).

It is the density with respect to Lebesgue measure on the upper triangle, diagonal included,
:math:`\prod_{i \le j} dG_{ij}`. A density depends on its measure, and so does its mode: the term
:math:`\tfrac{P+1}2\log|G|` is that of the measure alone, and is absent with respect to the measure
:math:`|G|^{-(P+1)/2} \prod_{i \le j} dG_{ij}`, which no change of basis :math:`A G A^T` alters.
Posterior probabilities and expectations are the same for both.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from convdkm.checks import check_positive, check_positive_number
from convdkm.errors import InvalidInputError, NumericalError, located
from convdkm.exact.dkm import FullRankDKM
from convdkm.gram import INDUCING_DTYPE, Gram
from convdkm.kernels import ArcCosine, Kernel
from convdkm.layers.base import keep_dtype
from convdkm.layers.samples import check_samples
from convdkm.likelihoods import Gaussian
from convdkm.numerics import (
    log_abs_det,
    normal_log_density,
    square_root,
    standard_normal,
    strict_cholesky,
    whiten,
    whitened_kl,
)

if TYPE_CHECKING:
    from jaxtyping import Float

SYMMETRIC = 1e-8
"""Largest difference of a Gram matrix from its transpose, relative to its largest entry."""

NEAR = 1e-6
"""Largest derivative at which the search for a mode no longer compares values."""


@dataclass(frozen=True, eq=False)
class PriorSample:
    r"""Draws from the prior of a deep Gaussian process.

    Attributes:
        features: :math:`F^1, \dots, F^L`, each ``(count, P, N_ℓ)``.
        grams: :math:`G^1, \dots, G^L`, each ``(count, P, P)``.
        functions: the outputs without noise, ``(count, P, num_outputs)``; given
            :math:`G^L`, each is normal with covariance :math:`K(G^L)`.
    """

    features: list[Tensor]
    grams: list[Tensor]
    functions: Tensor


class FiniteWidthDGP(nn.Module):
    r"""A deep Gaussian process with finitely many features in each layer, in Gram matrices.

    .. math::
        F^\ell &= (f_1, \dots, f_{N_\ell}), \quad f_\lambda \sim N(0, K(G^{\ell-1})), \qquad
        G^\ell = \tfrac1{N_\ell} F^\ell (F^\ell)^T, \\
        P(\tilde Y | G^L) &= \prod_\lambda N(y_\lambda; 0, K(G^L) + \sigma^2 I)^N,

    where :math:`\tilde Y` are the targets Y repeated N times (``copies``); N = 1 is the usual deep
    Gaussian process. With :math:`N_\ell = N\nu_\ell` (:meth:`from_machine`) and
    :math:`\mathcal L` the objective of :class:`FullRankDKM` (Eq. 5), at any Gram matrices

    .. math:: \tfrac1N \left(\log P(\tilde Y, G^1, \dots, G^L) - \sum_\ell c(N_\ell)\right)
              = \mathcal L - \tfrac{P+1}{2N} \sum_\ell \log|G^\ell|.

    So the difference falls as 1/N, and with it the distance of the mode from the machine's optimum;
    the constant, :attr:`log_constant`, grows only as the logarithm of N. With N = 1 and widths that
    grow, the mode tends to the recursive kernel of Eq. 4 instead, whatever the targets are.

    >>> import torch
    >>> from convdkm.exact import FiniteWidthDGP
    >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    >>> dgp = FiniteWidthDGP(x, widths=(50, 50))
    >>> sample = dgp.sample(3, generator=torch.Generator().manual_seed(0))
    >>> [tuple(gram.shape) for gram in sample.grams]
    [(3, 2, 2), (3, 2, 2)]
    >>> dgp.log_prior(sample.grams).shape
    torch.Size([3])

    Args:
        inputs: X, ``(P, N0)``.
        widths: :math:`N_1, \dots, N_L`, one for each layer.
        kernel: the kernel of every layer, or one for each layer and one for the outputs;
            ``ArcCosine()`` by default. Kernels are copied.
        noise: :math:`\sigma^2`, the variance of the noise.
        copies: N, how many times the targets are repeated.

    Everything is float64. Methods take the Gram matrices :math:`G^1, \dots, G^L` as a list or tuple
    of ``(..., P, P)``; those of a machine are ``machine.grams()[1:]``.
    """

    input_gram: Tensor

    def __init__(
        self,
        inputs: Tensor,
        widths: Sequence[int],
        *,
        kernel: Kernel | Sequence[Kernel] | None = None,
        noise: float = 0.1,
        copies: int = 1,
    ) -> None:
        super().__init__()
        check_samples(inputs, (None,))
        if not isinstance(widths, (list, tuple)):
            raise InvalidInputError(
                f"widths must be a list or tuple, one integer for each layer; got {widths!r}"
            )
        check_positive(**{f"widths[{index}]": width for index, width in enumerate(widths)})
        check_positive(copies=copies)
        check_positive_number(noise=noise)
        self.widths, self.noise, self.copies = tuple(widths), float(noise), copies
        self.kernels = nn.ModuleList(_one_for_each(kernel, len(widths) + 1))
        inputs = inputs.detach()
        self.register_buffer("input_gram", Gram.from_features(inputs, inputs[:0]).ii)

    @classmethod
    def from_machine(cls, machine: FullRankDKM, copies: int) -> FiniteWidthDGP:
        r"""The process whose limit, as ``copies`` grows, is a deep kernel machine.

        It has the machine's inputs, kernels and noise, and :math:`N\nu_\ell` features in layer ℓ.

        Args:
            machine: on vectors, with its training data, Gaussian noise, and every
                :math:`\nu_\ell` between 0 and infinity.
            copies: N; every :math:`N\nu_\ell` must be a whole number.
        """
        check_positive(copies=copies)
        if not isinstance(machine, FullRankDKM):
            raise InvalidInputError(f"machine must be a FullRankDKM, got {type(machine).__name__}")
        layers = [str(index) for index in range(1, len(machine.grams()))]
        body: Any = machine.body
        noise = machine.likelihood
        if not isinstance(noise, Gaussian) or [name for name, _ in body.named_children()] != [
            *(f"layer{index}" for index in layers),
            "kernel",
        ]:
            raise InvalidInputError(
                "the finite-width process is that of a machine on vectors with Gaussian noise:"
                " FullRankDKM.from_data(inputs, targets) without a body or likelihood"
            )
        nus = [body.get_submodule(f"layer{index}.gram").nu for index in layers]
        names = [*(f"layer{index}.kernel" for index in layers), "kernel"]
        return cls(
            machine.inputs,
            [_width(nu, copies, index) for nu, index in zip(nus, layers, strict=True)],
            kernel=[body.get_submodule(name) for name in names],
            noise=float(noise.noise.detach()),
            copies=copies,
        )

    @property
    def num_points(self) -> int:
        """P, the number of points."""
        return self.input_gram.shape[0]

    @property
    def depth(self) -> int:
        """L, the number of layers."""
        return len(self.widths)

    @property
    def log_constant(self) -> float:
        r""":math:`\sum_\ell c(N_\ell)`, the part of the log-density free of Gram matrices."""
        self._require_density()
        return math.fsum(_log_constant(width, self.num_points) for width in self.widths)

    # -- densities -----------------------------------------------------------------------------

    def log_prior(self, grams: Sequence[Tensor]) -> Tensor:
        r""":math:`\sum_\ell \log P(G^\ell | G^{\ell-1})`, in nats, ``(...)``.

        The density is that with respect to Lebesgue measure on the upper triangles. It exists
        where :math:`N_\ell \ge P`; narrower layers have singular Gram matrices.
        """
        self._require_density()
        grams = self._checked(grams)
        terms = [self.input_gram.new_zeros(())]
        for index, (gram, width) in enumerate(zip(grams, self.widths, strict=True)):
            below = grams[index - 1] if index else self.input_gram
            with located(f"layer{index + 1}"):
                terms.append(wishart_log_density(gram, self._kernel(index, below), width))
        return sum(terms[1:], terms[0])

    def log_likelihood(self, grams: Sequence[Tensor], targets: Tensor) -> Tensor:
        r""":math:`\log P(\tilde Y | G^L) = N \log P(Y | G^L)`, in nats, ``(...)``.

        Args:
            grams: :math:`G^1, \dots, G^L`; they may be singular.
            targets: Y, ``(P, outputs)``, or ``(P,)`` for one output.
        """
        targets = self._checked_targets(targets)
        grams = self._checked(grams)
        return self._log_likelihood(grams[-1] if grams else self.input_gram, targets)

    def log_joint(self, grams: Sequence[Tensor], targets: Tensor) -> Tensor:
        r""":math:`\log P(\tilde Y, G^1, \dots, G^L)`, in nats, ``(...)``.

        It is the log-posterior of the Gram matrices, up to a constant.
        """
        return self.log_likelihood(grams, targets) + self.log_prior(grams)

    # -- the prior -----------------------------------------------------------------------------

    @torch.no_grad()
    def sample(
        self,
        count: int = 1,
        *,
        num_outputs: int = 1,
        generator: torch.Generator | None = None,
    ) -> PriorSample:
        """Draw features, Gram matrices and functions from the prior, for any widths.

        Features take ``8 · count · P · N_ℓ`` bytes in layer ℓ.

        Args:
            count: number of independent draws.
            num_outputs: functions of each draw.
            generator: a generator on the CPU; the global one if not given.
        """
        check_positive(count=count, num_outputs=num_outputs)
        gram = self.input_gram.expand(count, -1, -1)
        features, grams = [], []
        for index, width in enumerate(self.widths):
            drawn = self._draw(index, gram, width, generator)
            gram = drawn @ drawn.mT / width
            features.append(drawn)
            grams.append(gram)
        return PriorSample(features, grams, self._draw(self.depth, gram, num_outputs, generator))

    @torch.no_grad()
    def recursive_grams(self) -> list[Tensor]:
        r""":math:`G^\ell = K(G^{\ell-1})` (Eq. 4), the Gram matrices of infinitely wide layers."""
        grams: list[Tensor] = []
        for index in range(self.depth):
            grams.append(self._kernel(index, grams[-1] if grams else self.input_gram))
        return grams

    # -- the mode ------------------------------------------------------------------------------

    def mode(
        self,
        targets: Tensor,
        *,
        start: Sequence[Tensor] | None = None,
        steps: int = 1000,
        tolerance: float = 1e-8,
    ) -> list[Tensor]:
        r"""The Gram matrices at which :meth:`log_joint` has a maximum, found by L-BFGS.

        The maximum is that of the density with respect to Lebesgue measure on the upper triangles.
        There may be several; the search follows the one that ``start`` leads to. In narrow layers
        the density is unbounded near singular matrices, and has no mode: there must be more than
        P + 1 features in each, and in deep processes more.

        Args:
            targets: Y, ``(P, outputs)``, or ``(P,)`` for one output.
            start: :math:`G^1, \dots, G^L`, each ``(P, P)``; :meth:`recursive_grams` by default.
            steps: most iterations to make, with a line search and then without one.
            tolerance: largest derivative of the log joint, divided by the largest width, by a
                factor of a Gram matrix in whitened coordinates, where the search may end.

        Raises:
            NumericalError: no such point was found.
        """
        check_positive(steps=steps)
        check_positive_number(tolerance=tolerance)
        self._require_mode()
        targets = self._checked_targets(targets)
        grams = self._checked(self.recursive_grams() if start is None else start)
        if any(gram.ndim > 2 for gram in grams):
            shapes = ", ".join(str(tuple(gram.shape)) for gram in grams)
            raise InvalidInputError(f"the start must be one (P, P) matrix a layer; got {shapes}")
        spreads = self._spreads(grams)
        if not spreads:
            return []
        try:
            largest = self._maximise(spreads, targets, steps, tolerance)
        except NumericalError as error:
            raise NumericalError(f"{self._no_mode} ({error})") from error
        if not largest <= tolerance:
            raise NumericalError(
                f"{self._no_mode} (the search ended at a derivative of {largest:.1e}, above the"
                f" tolerance of {tolerance:.1e})"
            )
        with torch.no_grad():
            return self._from_spreads(spreads)[0]

    def _maximise(
        self, spreads: list[Tensor], targets: Tensor, steps: int, tolerance: float
    ) -> float:
        """Move whitened factors to a maximum of the log joint; the largest derivative there.

        A line search compares values, whose rounding stops it at derivatives of some 1e-7. Steps
        of length one, from gradients alone, go on from :data:`NEAR`.
        """
        optimiser = torch.optim.LBFGS(
            spreads,
            max_iter=steps,
            max_eval=25 * steps,
            tolerance_grad=max(tolerance, NEAR),
            tolerance_change=0.0,
            history_size=100,
            line_search_fn="strong_wolfe",
        )

        def loss() -> Tensor:
            with torch.enable_grad():
                grams, log_prior = self._from_spreads(spreads)
                value = -(self._log_likelihood(grams[-1], targets) + log_prior) / max(self.widths)
            for spread, gradient in zip(spreads, torch.autograd.grad(value, spreads), strict=True):
                spread.grad = gradient
            return value.detach()

        def largest_derivative() -> float:
            loss()
            return max(float(each.grad.abs().max()) for each in spreads if each.grad is not None)

        optimiser.step(loss)
        if tolerance < largest_derivative() <= NEAR:
            optimiser.param_groups[0].update(line_search_fn=None, tolerance_grad=tolerance)
            optimiser.step(loss)
        return largest_derivative()

    @torch.no_grad()
    def _spreads(self, grams: Sequence[Tensor]) -> list[Tensor]:
        """Whitened factors Q with ``G = L Q Qᵀ Lᵀ``, where ``K = L Lᵀ``, as leaves."""
        spreads = []
        for index, gram in enumerate(grams):
            kernel = self._kernel(index, grams[index - 1] if index else self.input_gram)
            with located(f"layer{index + 1}"):
                spreads.append(_spread(gram, kernel)[0].contiguous().requires_grad_())
        return spreads

    def _from_spreads(self, spreads: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """The Gram matrices that whitened factors stand for, and their log-density."""
        grams: list[Tensor] = []
        log_prior = self.input_gram.new_zeros(())
        for index, (whole, width) in enumerate(zip(spreads, self.widths, strict=True)):
            spread = whole.tril()
            kernel = self._kernel(index, grams[-1] if grams else self.input_gram)
            with located(f"layer{index + 1}"):
                factor = strict_cholesky(kernel, _KERNEL)
            log_prior = log_prior + _log_density(spread, factor, width)
            grams.append((factor @ spread) @ (factor @ spread).mT)
        return grams, log_prior

    # -- internals -----------------------------------------------------------------------------

    def _kernel(self, index: int, gram: Tensor) -> Tensor:
        """The kernel matrices of layer ``index + 1``, of Gram matrices ``(..., P, P)`` below it."""
        kernel: Any = self.kernels[index]
        own = gram.diagonal(dim1=-2, dim2=-1)
        value = kernel.of(gram, own.unsqueeze(-1), own.unsqueeze(-2))
        value = 0.5 * (value + value.mT)
        return torch.diagonal_scatter(value, kernel.variance(own), dim1=-2, dim2=-1)

    def _draw(
        self, index: int, gram: Tensor, columns: int, generator: torch.Generator | None
    ) -> Tensor:
        """Columns that are normal with the kernel of layer ``index + 1`` as covariance."""
        root = square_root(self._kernel(index, gram))
        normal = standard_normal((*gram.shape[:-1], columns), generator)
        return root @ normal.to(root.device)

    def _log_likelihood(self, gram: Tensor, targets: Tensor) -> Tensor:
        kernel = self._kernel(self.depth, gram)
        with located("outputs"):
            factor = strict_cholesky(
                kernel + self.noise * torch.eye(self.num_points).to(kernel),
                "the covariance K + noise of the targets",
            )
        return self.copies * normal_log_density(factor, whiten(factor, targets))

    def _checked(self, grams: Sequence[Tensor]) -> list[Tensor]:
        """Gram matrices in float64, of the right number, shape and symmetry."""
        if not isinstance(grams, (list, tuple)) or len(grams) != self.depth:
            found = str(len(grams)) if isinstance(grams, (list, tuple)) else type(grams).__name__
            hint = "; leave out G⁰, which is fixed" if found == str(self.depth + 1) else ""
            raise InvalidInputError(
                f"grams must be a list of {self.depth} Gram matrices, one a layer; got"
                f" {found}{hint}"
            )
        return [
            _symmetric(gram, self.num_points, f"the Gram matrix of layer {index}").to(
                self.input_gram.device
            )
            for index, gram in enumerate(grams, 1)
        ]

    def _checked_targets(self, targets: Tensor) -> Tensor:
        outputs = targets.shape[1] if isinstance(targets, Tensor) and targets.ndim == 2 else 1
        targets = Gaussian(max(outputs, 1)).check_targets(targets, self.num_points)
        return targets.to(self.input_gram)

    def _require_density(self) -> None:
        for index, width in enumerate(self.widths, 1):
            if width < self.num_points:
                raise InvalidInputError(
                    f"layer {index} has {width} features for {self.num_points} points: its Gram"
                    f" matrix is singular and has no density. Take at least {self.num_points}"
                    " features; sample() needs no density"
                )

    def _require_mode(self) -> None:
        self._require_density()
        for index, width in enumerate(self.widths, 1):
            if width <= self.num_points + 1:
                raise InvalidInputError(
                    f"layer {index} has {width} features for {self.num_points} points: its density"
                    " does not vanish near singular Gram matrices, and need not have a mode. Take"
                    f" more than P + 1 = {self.num_points + 1} features"
                )

    @property
    def _no_mode(self) -> str:
        needed = [(self.depth - index) * (self.num_points + 1) for index in range(self.depth)]
        if all(width > least for width, least in zip(self.widths, needed, strict=True)):
            return (
                "no mode was found. Take more steps, start closer to it, or use kernels whose"
                " matrices are farther from singular"
            )
        return (
            "no mode was found: the density may be unbounded. With kernels that grow as their"
            f" inputs do, the widths must exceed {needed}, and are {list(self.widths)}; take wider"
            " layers"
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return super()._apply(keep_dtype(fn), recurse)

    def extra_repr(self) -> str:
        return (
            f"num_points={self.num_points}, widths={self.widths}, noise={self.noise:g},"
            f" copies={self.copies}"
        )


# -- the Wishart distribution ------------------------------------------------------------------

_GRAM, _KERNEL = "the Gram matrix G", "the kernel matrix K of the layer below"


def wishart_log_density(gram: Tensor, mean: Tensor, width: int) -> Tensor:
    r"""Log-density of :math:`G = \tfrac1N F F^T`, the N columns of F normal with covariance K.

    .. math::
        \log P(G) = \tfrac{N-P-1}2 \log|G| - \tfrac N2 \log|K| - \tfrac N2 \mathrm{tr}(K^{-1}G)
                    + \tfrac{NP}2 \log\tfrac N2 - \log\Gamma_P\!\left(\tfrac N2\right)

    with respect to Lebesgue measure on the upper triangle: that of
    ``scipy.stats.wishart(N, K / N)``.

    Args:
        gram: G, ``(..., P, P)``.
        mean: K, the mean of G, ``(..., P, P)``.
        width: N, at least P.

    Returns:
        The log-density in nats, ``(...)``, in float64.
    """
    check_positive(width=width)
    size = gram.shape[-1] if isinstance(gram, Tensor) and gram.ndim else 0
    gram, mean = _symmetric(gram, size, "the Gram matrix"), _symmetric(mean, size, "the mean")
    if width < size:
        raise InvalidInputError(
            f"width must be at least the size of the Gram matrix, {size}; got {width}: the matrix"
            " is singular and has no density"
        )
    return _log_density(*_spread(gram, mean), width)


def _spread(
    gram: Float[Tensor, "*#batch P P"], kernel: Float[Tensor, "*#batch P P"]
) -> tuple[Float[Tensor, "*batch P P"], Float[Tensor, "*#batch P P"]]:
    """Q and L with ``G = L Q Qᵀ Lᵀ`` and ``K = L Lᵀ``."""
    factor = strict_cholesky(kernel, _KERNEL)
    return whiten(factor, strict_cholesky(gram, _GRAM)), factor


def _log_density(
    spread: Float[Tensor, "*batch P P"], factor: Float[Tensor, "*#batch P P"], width: int
) -> Float[Tensor, "*batch"]:
    """The log-density of ``G = L Q Qᵀ Lᵀ`` from Q and L."""
    points = factor.shape[-1]
    log_root = log_abs_det(spread, triangular=True) + log_abs_det(factor, triangular=True)
    divergence = whitened_kl(spread, triangular=True)
    return _log_constant(width, points) - width * divergence - (points + 1) * log_root


def _log_constant(width: int, points: int) -> float:
    """c(N), which does not depend on the Gram matrix."""
    log_gamma = math.fsum(math.lgamma((width - index) / 2) for index in range(points))
    log_gamma += points * (points - 1) / 4 * math.log(math.pi)
    return width * points / 2 * (math.log(width / 2) - 1) - log_gamma


# -- arguments ---------------------------------------------------------------------------------


def _symmetric(matrix: Tensor, size: int, what: str) -> Tensor:
    """Symmetric matrices ``(..., size, size)``, in float64."""
    if not isinstance(matrix, Tensor) or matrix.shape[-2:] != (size, size) or not matrix.numel():
        found = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
        raise InvalidInputError(f"{what} must have shape (..., {size}, {size}); got {found}")
    if not matrix.dtype.is_floating_point:
        raise InvalidInputError(f"{what} must be floating-point, got {matrix.dtype}")
    largest, skew = (each.detach().abs().max() for each in (matrix, matrix - matrix.mT))
    if not bool(skew <= SYMMETRIC * largest):
        raise InvalidInputError(
            f"{what} is not symmetric, or not finite; if this is rounding, take (G + Gᵀ)/2"
        )
    return matrix.to(INDUCING_DTYPE)


def _one_for_each(kernel: Kernel | Sequence[Kernel] | None, count: int) -> list[Kernel]:
    """Copies of one kernel for all, or of one for each."""
    kernel = ArcCosine() if kernel is None else kernel
    kernels = [kernel] * count if isinstance(kernel, Kernel) else list(kernel)
    for each in kernels:
        if not isinstance(each, Kernel):
            raise InvalidInputError(f"kernel must be a convdkm.Kernel, got {type(each).__name__}")
    if len(kernels) != count:
        raise InvalidInputError(
            f"kernel must be one kernel, or one for each of {count - 1} layers and one for the"
            f" outputs; got {len(kernels)}"
        )
    return [copy.deepcopy(each) for each in kernels]


def _width(nu: float, copies: int, layer: str) -> int:
    """``N ν``, which must be a positive integer."""
    if not 0 < nu < math.inf:
        raise InvalidInputError(
            f"nu = {nu:g} in layer {layer} leaves no Wishart distribution: a layer has copies · nu"
            " features, which must be positive and finite"
        )
    width = round(copies * nu)
    if width < 1 or not math.isclose(width, copies * nu, rel_tol=1e-12):
        share = Fraction(nu).limit_denominator(10**6).denominator
        raise InvalidInputError(
            f"copies · nu = {copies} · {nu:g} in layer {layer} is not a whole number of features;"
            f" let copies be a multiple of {share}"
        )
    return width

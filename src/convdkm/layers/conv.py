r"""The kernelised convolution Γ with inter-domain inducing points (Eq. 11 and 17 to 19)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from convdkm.checks import check_choice, check_positive
from convdkm.choices import Border, MixingInit, Parameterisation
from convdkm.errors import InvalidInputError
from convdkm.gram import INDUCING_DTYPE, Gram
from convdkm.layers.base import Layer, require_inducing
from convdkm.numerics import cholesky, factorised, mix, pivoted_cholesky_order, standard_normal
from convdkm.ops.base import Plan
from convdkm.ops.conv import ConvPlan, MixPlan
from convdkm.ops.inducing import gram_of_weights, mixed
from convdkm.ops.window import Padding, Size, Window

POOL_FACTOR = 16
"""Candidates drawn for each inducing point that is chosen among real patches."""


class Mixing(Layer):
    """A layer with mixing weights C, ``(out_inducing, in_inducing, *size)``.

    The parameter ``weight`` is C, or with ``divided`` C times the root of ``in_inducing``. With
    ``identity``, C starts such that the incoming inducing points are passed on.
    """

    def __init__(
        self,
        in_inducing: int,
        out_inducing: int,
        size: tuple[int, ...],
        *,
        divided: bool,
        identity: bool,
    ) -> None:
        super().__init__()
        check_positive(in_inducing=in_inducing, out_inducing=out_inducing)
        self.in_inducing, self.out_inducing = in_inducing, out_inducing
        self.identity = identity
        self.divisor = in_inducing**0.5 if divided else 1.0
        shape = (out_inducing, in_inducing, *size)
        self.weight = nn.Parameter(torch.empty(shape, dtype=INDUCING_DTYPE))

    @torch.no_grad()
    def draw_weights(
        self, generator: torch.Generator | None = None, factor: Tensor | None = None
    ) -> None:
        r"""Set C to its start: Gaussian of variance ``1/in_inducing``, or the identity.

        From the identity, the first :math:`P = \min(P_{in}, P_{out})` outgoing points are the
        incoming ones: :math:`C_d = \sqrt D\,I` at the centre of the D places and 0 elsewhere, so
        that :math:`\tfrac1D\sum_d C_d\Omega C_d^T = \Omega` and rows of C have the length of random
        ones. The other points are Gaussian.

        Args:
            generator: of the Gaussian numbers.
            factor: L with :math:`\Omega = LL^T`, if the weights are relative to it: the identity is
                :math:`\tilde C_d = \sqrt D L`, and the Gaussian numbers have the mean variance
                :math:`|L|^2/P_{in}` of the incoming points.
        """
        passed = min(self.in_inducing, self.out_inducing) if self.identity else 0
        rest = self.weight[passed:]
        rest.copy_(standard_normal(rest.shape, generator) * (self.divisor * self.in_inducing**-0.5))
        if self.identity:
            if factor is None:
                factor = torch.eye(self.in_inducing).to(self.weight)
            rest.mul_(factor.norm() * self.in_inducing**-0.5)
            centre = self.weight[:passed].zero_()
            for length in self.weight.shape[2:]:
                centre = centre.select(2, (length - 1) // 2)
            places = math.prod(self.weight.shape[2:])
            centre.copy_(self.divisor * places**0.5 * factor[:passed])

    def weights_for(self, ii: Tensor) -> Tensor:
        """C, for a Gram with as many inducing points as the layer was built for."""
        require_inducing(ii, self.in_inducing)
        return self.weight if self.divisor == 1 else self.weight / self.divisor


class Conv(Mixing):
    r"""Convolution of a Gram, with mixing weights C that make patches of inducing points.

    .. math::
        \Gamma^{ii}_{ij} &= \tfrac1D \sum_d \sum_{i'j'} C_{di,i'} C_{dj,j'} \Omega^{ii}_{i'j'} \\
        \Gamma^{it}_{i,js} &= \tfrac1D \sum_d \sum_{i'} C_{di,i'} \Omega^{it}_{i',j(s+d)} \\
        \Gamma^{tt}_{is,is} &= \tfrac1D \sum_d \Omega^{tt}_{i(s+d),i(s+d)}

    Args:
        in_inducing: :math:`P_i` of the incoming Gram.
        out_inducing: :math:`P_i` of the outgoing Gram.
        kernel_size: size of the filter, an integer or one for each axis.
        stride, dilation: as in ``torch.nn.Conv2d``.
        padding: zeros around the image; ``"same"`` (default) or ``"valid"``, or integers.
        border: ``"zero"`` (the paper): a place outside the image contributes zero to every block;
            ``"inside"`` (the published runs): Γ_tt averages over the places inside only.
        mixing: how C starts. ``"random"`` (the paper): Gaussian of variance ``1/in_inducing``.
            ``"patches"``: each new inducing point is a real patch of the layer below, chosen at
            :meth:`initialise` greedily from a pool; until then C is random. ``"identity"``: the
            first :math:`\min(P_{in}, P_{out})` inducing points are passed on. The centre of the
            filter starts as :math:`\sqrt D\,I` and its other places as zero, so that
            :math:`\Gamma_{ii} = \Omega_{ii}` where the two numbers are the same; more outgoing
            points are random. With ``"whitened"`` weights, which see :math:`\Omega_{ii}` at
            :meth:`initialise`, the points passed on are the same:
            :math:`\tilde C_d = \sqrt D\,L` at the centre.
        parameterisation: ``"direct"`` (the paper): C itself is learned. ``"whitened"``:
            :math:`\tilde C` with :math:`C_d = \tilde C_d L^{-1}` and :math:`\Omega_{ii} = LL^T`, so
            that :math:`\Gamma_{ii} = \tfrac1D\sum_d \tilde C_d\tilde C_d^T`. The machine is the
            same; steps of the optimiser no longer depend on how alike the incoming inducing points
            are, which in a kernel with a large constant part is much.
        divided: learn :math:`\sqrt{P_i}\,C`, which starts as standard normal numbers (the
            published runs), with :math:`P_i` the incoming inducing points. The machine is the same;
            a step of Adam moves C by :math:`1/\sqrt{P_i}` of what it would.
        ndim: number of spatial axes, 1 to 3.

    The weights have shape ``(out_inducing, in_inducing, *kernel_size)``, as those of a CNN.
    """

    def __init__(
        self,
        in_inducing: int,
        out_inducing: int,
        kernel_size: Size,
        *,
        stride: Size = 1,
        padding: Padding = "same",
        dilation: Size = 1,
        border: Border = "zero",
        mixing: MixingInit = "random",
        parameterisation: Parameterisation = "direct",
        divided: bool = False,
        ndim: int = 2,
    ) -> None:
        check_choice("border", border, Border)
        check_choice("mixing", mixing, MixingInit)
        check_choice("parameterisation", parameterisation, Parameterisation)
        window = Window.of(kernel_size, stride, padding, dilation, ndim)
        super().__init__(
            in_inducing,
            out_inducing,
            window.size,
            divided=divided,
            identity=mixing == "identity",
        )
        self.window, self.border = window, border
        self.mixing, self.parameterisation = mixing, parameterisation
        self.draw_weights()

    def plan(self, ii: Tensor) -> Plan:
        weight = self.weights_for(ii)
        if self.parameterisation == "whitened":
            right = factorised(ii, "the Gram matrix that is convolved")[1]
            return ConvPlan(gram_of_weights(weight), weight, self.window, self.border, right)
        return ConvPlan(mixed(weight, ii), weight, self.window, self.border)

    def initialise(self, gram: Gram, generator: torch.Generator | None = None) -> Gram:
        require_inducing(gram.ii, self.in_inducing)
        if self.mixing == "patches":
            with torch.no_grad():
                self.weight.copy_(self.divisor * self._real_patches(gram, generator))
        elif self.identity and self.parameterisation == "whitened":
            self.draw_weights(generator, cholesky(gram.ii, "the Gram matrix that is convolved"))
        else:
            self.draw_weights(generator)
        return self(gram)

    def _real_patches(self, gram: Gram, generator: torch.Generator | None) -> Tensor:
        r"""Weights that make inducing points of real patches of the layer below.

        The patch with content :math:`\Omega_{ti}(d)` at offset d has
        :math:`C_d = \Omega_{ti}(d)\,\Omega_{ii}^{-1}` and
        :math:`\tilde C_d = \Omega_{ti}(d)\,L^{-T}`.
        The candidates' features are their whitened coordinates at every offset, so that the
        pivots maximise what is explained of the others in the kernel of the outgoing Gram.
        """
        output = self.window.output_space(gram.space)
        places = len(gram) * math.prod(output)
        if places < self.out_inducing:
            raise InvalidInputError(
                f"{self.out_inducing} inducing points were asked for, but the images used to"
                f" initialise hold only {places} patches at this layer; give more images"
            )
        pool = min(places, POOL_FACTOR * self.out_inducing)
        drawn = torch.randperm(places, generator=generator)[:pool].to(gram.device)
        per_image = places // len(gram)
        factor, whitening = factorised(gram.ii, "the kernel matrix below, Omega_ii")
        images, where = drawn // per_image, drawn % per_image
        needed, compact = images.unique(return_inverse=True)
        white = mix(whitening, gram.it[needed].to(INDUCING_DTYPE))
        patches = self.window.patches(white, compact, where)
        features = patches.flatten(1) / self.window.count**0.5
        chosen = patches[pivoted_cholesky_order(features, self.out_inducing)].flatten(2)
        if self.parameterisation == "direct":
            chosen = torch.linalg.solve_triangular(factor.T, chosen, upper=True)
        return chosen.reshape(self.weight.shape)

    def extra_repr(self) -> str:
        return f"{self.in_inducing}, {self.out_inducing}, {self.window}, border={self.border!r}"


class Mix(Mixing):
    """Mixing weights without space: ``G_ii ← C G_ii Cᵀ``, ``G_it ← C G_it`` ("mixup").

    A convolution with one place; changes the number of inducing points of a Gram of any shape.
    Starts at the identity where the two numbers are the same and ``identity`` is set; ``divided``
    is that of :class:`Conv`.
    """

    def __init__(
        self, in_inducing: int, out_inducing: int, *, identity: bool = False, divided: bool = False
    ) -> None:
        super().__init__(in_inducing, out_inducing, (), divided=divided, identity=identity)
        if identity and in_inducing != out_inducing:
            raise InvalidInputError(
                f"only a square Mix starts at the identity, got {in_inducing} → {out_inducing}"
            )
        self.draw_weights()

    def plan(self, ii: Tensor) -> Plan:
        weight = self.weights_for(ii)
        return MixPlan(weight @ ii @ weight.T, weight)

    def initialise(self, gram: Gram, generator: torch.Generator | None = None) -> Gram:
        self.draw_weights(generator)
        return self(gram)

    def extra_repr(self) -> str:
        return f"{self.in_inducing}, {self.out_inducing}"

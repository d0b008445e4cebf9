r"""The first Gram, :math:`G^0`: from images or vectors, and learned inducing inputs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from convdkm.checks import check_choice, check_positive
from convdkm.choices import Border, InducingChoice
from convdkm.errors import InvalidInputError, NotInitialisedError
from convdkm.gram import INDUCING_DTYPE, Gram
from convdkm.layers.base import keep_dtype
from convdkm.layers.conv import POOL_FACTOR
from convdkm.layers.samples import SampleShape, check_samples
from convdkm.numerics import eigenvectors, inverse_root, pivoted_cholesky_order, square_root
from convdkm.ops.conv import PatchesPlan, VectorsPlan
from convdkm.ops.window import Padding, Size, Window

EIGEN_PATCHES = 65536
"""The most patches that eigenvectors are worked out from."""


class Input(nn.Module):
    """Base class of what turns data into the first Gram.

    The inducing inputs ``inducing`` are a float64 parameter, drawn from data by
    :meth:`initialise`. :meth:`inducing_block` is free of data; :meth:`data` gives the other blocks.
    """

    inducing: Tensor
    initialised: Tensor
    sample_shape: SampleShape

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.inducing = nn.Parameter(torch.zeros(shape, dtype=INDUCING_DTYPE))
        self.register_buffer("initialised", torch.tensor(False))
        self._ready = False

    @property
    def num_inducing(self) -> int:
        return self.inducing.shape[0]

    def inducing_block(self) -> Tensor:
        r""":math:`G^0_{ii} = \tfrac1M Z Z^T` for inducing inputs Z with M entries each."""
        if not self._ready:
            raise NotInitialisedError(
                "the inducing inputs have not been drawn from data; call initialise(images, labels)"
                " on the model, or load a state_dict first"
            )
        flat = self._rows()
        return flat @ flat.T / flat.shape[1]

    def _rows(self) -> Tensor:
        """The inducing inputs as rows, whose products are the first Gram."""
        return self.inducing.flatten(1)

    def plan(self) -> Any:
        """What :meth:`data` does, with all that is free of data worked out; None if not known."""
        return None

    def data(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The blocks ``it`` and ``tt`` of checked inputs."""
        plan = self.plan()
        if plan is None:
            raise NotImplementedError(f"{type(self).__name__} must define data(inputs)")
        blocks: tuple[Tensor, Tensor] = plan.data(inputs)
        return blocks

    def candidates(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """``num_inducing`` inducing inputs drawn at random from ``inputs``."""
        raise NotImplementedError(
            f"{type(self).__name__} must define candidates(inputs, generator)"
        )

    def forward(self, inputs: Tensor) -> Gram:
        it, tt = self.data(inputs)
        return Gram(self.inducing_block(), it, tt)

    @torch.no_grad()
    def initialise(self, inputs: Tensor, generator: torch.Generator | None = None) -> Gram:
        """Draw the inducing inputs from data, and return the first Gram."""
        self.set_inducing(self.candidates(inputs, generator))
        return self(inputs)

    @torch.no_grad()
    def set_inducing(self, inducing: Tensor) -> None:
        """Use these inducing inputs, of the shape of the parameter ``inducing``."""
        if inducing.shape != self.inducing.shape:
            raise InvalidInputError(
                f"the inducing inputs have shape {tuple(self.inducing.shape)}, got"
                f" {tuple(inducing.shape)}"
            )
        self.inducing.copy_(inducing)
        self._ready = True
        self.initialised.fill_(True)

    def check(self, inputs: Tensor) -> None:
        """Raise unless ``inputs`` is a batch of finite samples of the right shape."""
        check_samples(inputs, self.sample_shape)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return super()._apply(keep_dtype(fn), recurse)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        if not self.initialised.is_meta:
            self._ready = bool(self.initialised)


class PatchInput(Input):
    r"""Gram of the patches of images, with inducing patches Z.

    .. math::
        G^0_{ii} = \tfrac{1}{CD} \sum_{dc} Z_{i,dc} Z_{j,dc}, \quad
        G^0_{it} = \tfrac{1}{CD} \sum_{dc} Z_{i,dc} X_{j(s+d),c}, \quad
        g^0_{tt} = \tfrac{1}{CD} \sum_{dc} X_{j(s+d),c}^2

    for images with C channels and patches of D places: the Gram of a first convolution.

    Args:
        in_channels: C.
        num_inducing: :math:`P_i`.
        kernel_size, stride, padding, dilation, border, ndim: as in :class:`Conv`.
        choice: which patches of the images are inducing patches to start with. ``"random"`` (the
            paper): any. ``"distinct"``: those of a random pool whose directions explain the others
            best, chosen greedily; where much of the images is blank, as in handwriting, most
            patches drawn at random are zero, and a patch that is zero stays so. ``"eigenvectors"``:
            :math:`v_1, …, v_k, -v_1, …, -v_{P_i-k}`, with :math:`v_j` the leading unit eigenvectors
            of :math:`\tfrac1M\sum_m u_m u_m^T` over M random patches :math:`u_m` and :math:`k =
            \min(CD, \lceil P_i/2\rceil)`; where :math:`P_i > 2CD` the rest are random patches
            divided by their norms.
        interior: draw patches that lie inside the image (the published runs), and not those that
            reach into the zeros around it.
    """

    def __init__(
        self,
        in_channels: int,
        num_inducing: int,
        kernel_size: Size = 3,
        *,
        stride: Size = 1,
        padding: Padding = "same",
        dilation: Size = 1,
        border: Border = "zero",
        choice: InducingChoice = "random",
        interior: bool = False,
        ndim: int = 2,
    ) -> None:
        check_positive(in_channels=in_channels, num_inducing=num_inducing)
        check_choice("border", border, Border)
        check_choice("choice", choice, InducingChoice)
        window = Window.of(kernel_size, stride, padding, dilation, ndim)
        super().__init__((num_inducing, in_channels, *window.size))
        self.window, self.in_channels, self.border = window, in_channels, border
        self.choice = choice
        self.drawn_from = replace(window, padding=((0, 0),) * ndim) if interior else window
        self.sample_shape = (in_channels, *(None,) * ndim)

    def plan(self) -> PatchesPlan:
        weight = self.inducing / (self.in_channels * self.window.count)
        return PatchesPlan(weight, self.window, self.border)

    def candidates(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        places = math.prod(self.drawn_from.output_space(inputs.shape[2:]))
        total = len(inputs) * places
        if total < self.num_inducing:
            raise InvalidInputError(
                f"{self.num_inducing} inducing patches were asked for, but {len(inputs)} images of"
                f" shape {tuple(inputs.shape[1:])} hold only {total} patches"
            )
        if self.choice == "random":
            return self._drawn(inputs, self.num_inducing, places, generator)
        if self.choice == "eigenvectors":
            patches = self._drawn(inputs, min(total, EIGEN_PATCHES), places, generator)
            chosen = leading_directions(patches.flatten(1), self.num_inducing)
            return chosen.reshape(self.inducing.shape)
        pool = min(total, POOL_FACTOR * self.num_inducing)
        patches = self._drawn(inputs, pool, places, generator)
        return patches[distinct(patches.flatten(1), self.num_inducing)]

    def _drawn(
        self, inputs: Tensor, count: int, places: int, generator: torch.Generator | None
    ) -> Tensor:
        """Patches at random: one of each image in turn, so that no image or class is favoured."""
        rounds = -(-count // len(inputs))
        where = torch.stack(
            [torch.randperm(places, generator=generator)[:rounds] for _ in range(len(inputs))], 1
        )
        which = torch.arange(len(inputs)).expand_as(where)
        where, which = where.flatten()[:count], which.flatten()[:count]
        return self.drawn_from.patches(inputs, which.to(inputs.device), where.to(inputs.device))

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.num_inducing}, {self.window}, border={self.border!r}"


def distinct(vectors: Tensor, count: int) -> Tensor:
    r"""Indices of ``count`` vectors whose directions explain those of the others best.

    They are pivots of a Cholesky factorisation of :math:`e^{2(\rho - 1)}`, with ρ the cosine of two
    vectors: a kernel in which more directions than dimensions can differ. Vectors that are zero
    come last.
    """
    wide = vectors.detach().to(INDUCING_DTYPE)
    unit = wide * inverse_root(wide.square().sum(1, keepdim=True))
    there = unit.any(1)
    kernel = torch.exp(2 * (unit @ unit.T - 1)) * (there[:, None] & there)
    return pivoted_cholesky_order(square_root(kernel), count)


def leading_directions(vectors: Tensor, count: int) -> Tensor:
    r"""The leading unit eigenvectors of :math:`\tfrac1M\sum_m u_m u_m^T`, and minus these.

    Where ``count`` is more than twice the dimension, the first vectors follow, at unit length; one
    that is zero stays so.
    """
    wide = vectors.detach().to(INDUCING_DTYPE)
    leading = eigenvectors(wide.T @ wide / len(wide)).flip(1).T
    half = min(len(leading), -(-count // 2))
    signed = torch.cat([leading[:half], -leading[:half]])[:count]
    rest = wide[: count - len(signed)]
    return torch.cat([signed, rest * inverse_root(rest.square().sum(1, keepdim=True))])


class VectorInput(Input):
    r"""Gram of vectors, with inducing vectors Z: :math:`G^0 = \tfrac1{N_0} X X^T` over both.

    Args:
        in_features: :math:`N_0`.
        num_inducing: :math:`P_i`.
        learn_scales: learn a scale :math:`s_d` of every feature (through its logarithm, from 1), so
            that :math:`G^0_{ij} = \tfrac1{N_0}\sum_d s_d^2 X_{id} X_{jd}`.
    """

    log_scales: Tensor | None

    def __init__(self, in_features: int, num_inducing: int, *, learn_scales: bool = False) -> None:
        check_positive(in_features=in_features, num_inducing=num_inducing)
        super().__init__((num_inducing, in_features))
        self.in_features = in_features
        self.sample_shape = (in_features,)
        self.log_scales = None
        if learn_scales:
            self.log_scales = nn.Parameter(torch.zeros(in_features, dtype=INDUCING_DTYPE))

    @property
    def relevance(self) -> Tensor | None:
        """What the product of every feature counts, :math:`s_d^2`; None if not learned."""
        return None if self.log_scales is None else torch.exp(2 * self.log_scales)

    def _rows(self) -> Tensor:
        return self.inducing if self.log_scales is None else self.inducing * self.log_scales.exp()

    def plan(self) -> VectorsPlan:
        weight, relevance = self.inducing / self.in_features, self.relevance
        return VectorsPlan(weight if relevance is None else weight * relevance, relevance)

    def candidates(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        if len(inputs) < self.num_inducing:
            raise InvalidInputError(
                f"{self.num_inducing} inducing points were asked for, but there are only"
                f" {len(inputs)} vectors to draw them from"
            )
        return inputs[torch.randperm(len(inputs), generator=generator)[: self.num_inducing]]

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.num_inducing}"

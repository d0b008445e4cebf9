r"""Maximising an objective over Gram matrices, by Newton steps in their natural metric.

The natural (Fisher) metric of :math:`N(0, G)` is :math:`\tfrac12|F^{-1}dG\,F^{-T}|^2` where
:math:`G = F F^T`. So a Gram matrix is moved to :math:`F T T^T F^T` with T lower triangular: in the
entries of T the metric is a multiple of the identity, and G is positive definite by construction.
In these coordinates every iteration solves :math:`H p = -g` by conjugate gradients, and goes along
p as far as the objective increases. Products with H are differences of gradients, so that the
objective needs to be differentiable once. What the conjugate gradients learn of H preconditions
those of the next iteration.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from convdkm.errors import ConvDKMError

_LOG = logging.getLogger(__name__)

MOST_PRODUCTS = 100
"""Products with the Hessian in one iteration."""

MEMORY = 20
"""Directions whose curvature is kept for the next iteration."""

Pairs = deque[tuple[Tensor, Tensor]]
"""Directions d and products H d, the last ones."""

_DIFFERENCE = 1e-6
"""The largest coordinate of a step of which gradients are differences."""

_SHORTEST = 1e-5
"""The share of a step that is tried last."""


class Coordinates:
    """Local coordinates of a parameter: zero where it is, and with a curvature of about one.

    Args:
        parameter: what is moved.
        weight: about the curvature of the objective by the parameter.
    """

    def __init__(self, parameter: nn.Parameter, weight: float) -> None:
        self.parameter, self.scale = parameter, math.sqrt(weight)
        self.anchor()

    def anchor(self) -> None:
        """Let zero be where the parameter is now."""
        self.start = self.parameter.detach().clone()

    @torch.no_grad()
    def move(self, place: Tensor) -> None:
        """Set the parameter to the value that has these coordinates."""
        self.parameter.copy_(self.start + place.reshape(self.start.shape) / self.scale)

    @torch.no_grad()
    def gradient(self) -> Tensor:
        """The gradient by the coordinates, from that by the parameter."""
        return self._by_parameter().flatten() / self.scale

    def _by_parameter(self) -> Tensor:
        grad = self.parameter.grad
        return torch.zeros_like(self.parameter) if grad is None else grad


class FactorCoordinates(Coordinates):
    r"""Coordinates of a factor F of a covariance :math:`F F^T`: F T with T lower triangular.

    With coordinates x and numbers c, entries below the diagonal of T are :math:`x/c`, and those on
    it :math:`t + \sqrt{1+t^2}` with :math:`t = x/(\sqrt2 c)`: always positive, one at zero, with a
    slope of one there.
    """

    def anchor(self) -> None:
        super().anchor()
        size = self.start.shape[-1]
        self.scales = self.scale * torch.ones_like(self.start[..., :size, :]).tril()
        self.scales = torch.where(self.scales > 0, self.scales, math.inf)
        self.scales.diagonal(dim1=-2, dim2=-1).mul_(math.sqrt(2))
        self.slope = torch.ones_like(self.start.diagonal(dim1=-2, dim2=-1))

    @torch.no_grad()
    def move(self, place: Tensor) -> None:
        turned = place.reshape(self.start.shape) / self.scales
        diagonal = turned.diagonal(dim1=-2, dim2=-1)
        root = (1 + diagonal.square()).sqrt()
        self.slope = 1 + diagonal / root
        diagonal.add_(root)
        self.parameter.copy_(self.start @ turned)

    @torch.no_grad()
    def gradient(self) -> Tensor:
        by_turned = self.start.mT @ self._by_parameter()
        by_turned.diagonal(dim1=-2, dim2=-1).mul_(self.slope)
        return (by_turned / self.scales).flatten()


class _Point(NamedTuple):
    """The negative of the objective somewhere, and its gradient by the coordinates."""

    value: float
    gradient: Tensor


class _Problem:
    """The negative of an objective as a function of one vector of coordinates."""

    def __init__(self, objective: Callable[[], Tensor], coordinates: Sequence[Coordinates]) -> None:
        self.objective, self.coordinates = objective, coordinates
        self.sizes = [each.start.numel() for each in coordinates]

    def at(self, place: Tensor) -> _Point:
        self.move(place)
        for each in self.coordinates:
            each.parameter.grad = None
        value = -self.objective()
        value.backward()
        return _Point(float(value.detach()), self._gradient())

    def move(self, place: Tensor) -> None:
        for each, part in zip(self.coordinates, place.split(self.sizes), strict=True):
            each.move(part)

    def anchored(self, value: float) -> _Point:
        """The point that was evaluated last, which becomes the origin."""
        for each in self.coordinates:
            each.anchor()
        return _Point(value, self._gradient())

    def _gradient(self) -> Tensor:
        return torch.cat([each.gradient() for each in self.coordinates])


class _Curvature:
    """The inverse of a Hessian from directions d and products H d, as L-BFGS has it."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor, float]] = []

    def learn(self, pairs: Pairs) -> None:
        if len(pairs) > 3:
            self.pairs = [(d, h, 1 / float(d @ h)) for d, h in pairs]

    def __call__(self, vector: Tensor) -> Tensor:
        if not self.pairs:
            return vector
        vector, shares = vector.clone(), []
        for direction, product, inverse in reversed(self.pairs):
            shares.append(inverse * float(direction @ vector))
            vector.sub_(product, alpha=shares[-1])
        direction, product, inverse = self.pairs[-1]
        vector.div_(inverse * float(product @ product))
        for (direction, product, inverse), share in zip(self.pairs, reversed(shares), strict=True):
            vector.add_(direction, alpha=share - inverse * float(product @ vector))
        return vector


def newton_steps(
    objective: Callable[[], Tensor],
    coordinates: Sequence[Coordinates],
    tolerance: float,
    accepts: Callable[[], bool] = lambda: True,
) -> Generator[None]:
    """Maximise an objective, which increases with every iteration.

    Args:
        objective: the objective at the parameters as they are, differentiable once.
        coordinates: of all parameters that are moved.
        tolerance: the increase that an iteration expects of the objective, in its own units, below
            which it is the last.
        accepts: whether the point that was evaluated last may be gone to, as far as others than the
            objective are concerned; iterations end where none may.

    Yields:
        Nothing, after each iteration; the parameters are then those that it has found.
    """
    problem, curvature = _Problem(objective, coordinates), _Curvature()
    origin = coordinates[0].start.new_zeros(sum(problem.sizes))
    point, longest = problem.at(origin), math.inf
    try:
        while True:
            step, pairs = _newton_step(problem, point, curvature)
            curvature.learn(pairs)
            slope, length = float(point.gradient @ step), float(step.norm())
            share = min(1.0, longest / length) if length else 0.0
            found = _search(problem, point, step, slope, share, accepts)
            if found is None:
                _LOG.info("no step increases the objective; the last promised %.1e", -slope / 2)
                return
            longest = max(1.0, 4 * length * found[0])
            point = problem.anchored(found[1])
            yield
            if -slope / 2 <= tolerance:
                return
    finally:
        problem.move(origin)


def _newton_step(problem: _Problem, point: _Point, curvature: _Curvature) -> tuple[Tensor, Pairs]:
    """About −H⁻¹g by conjugate gradients, up to where the curvature is not positive."""

    def product(direction: Tensor) -> Tensor:
        small = _DIFFERENCE / float(direction.abs().max())
        return (problem.at(small * direction).gradient - point.gradient) / small

    size = float(point.gradient.norm())
    step, residual = torch.zeros_like(point.gradient), -point.gradient
    pairs: Pairs = deque(maxlen=MEMORY)
    if not size:
        return step, pairs
    direction = white = curvature(residual)
    overlap = float(residual @ white)
    for _ in range(MOST_PRODUCTS):
        pushed = product(direction)
        bent = float(direction @ pushed)
        if not bent > 0:
            return (step if pairs else direction), pairs
        pairs.append((direction, pushed))
        step = step + overlap / bent * direction
        residual = residual - overlap / bent * pushed
        if float(residual.norm()) <= min(0.5, math.sqrt(size)) * size:
            break
        white = curvature(residual)
        before, overlap = overlap, float(residual @ white)
        direction = white + overlap / before * direction
    return step, pairs


def _search(  # noqa: PLR0917
    problem: _Problem,
    point: _Point,
    step: Tensor,
    slope: float,
    share: float,
    accepts: Callable[[], bool],
) -> tuple[float, float] | None:
    """The largest share of a step, of those tried, that pays; and the value there."""
    while share > _SHORTEST:
        try:
            value = problem.at(share * step).value
        except ConvDKMError:  # a matrix that cannot be factorised: too far
            value = math.nan
        if value < point.value + 1e-4 * share * slope and accepts():
            return share, value
        share *= 0.3
    return None

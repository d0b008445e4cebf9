"""Fusion: which operations of a chain become one.

A matrix that an operation begins with goes into the weights of the one before
(:meth:`Operation.split`, :meth:`Operation.premultiplied`), past noise, which leaves ``it`` alone;
and two neighbours of the kinds in :data:`PAIRS` become one operation.

For prediction the chain is frozen from its end to its start: an operation may then be simpler if
``it`` is multiplied by a matrix before, which again goes into the weights before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from convdkm.errors import located
from convdkm.ops.base import Plan
from convdkm.ops.conv import ConvPlan, MixPlan
from convdkm.ops.gram import CentrePlan, Centring, GramPlan
from convdkm.ops.kernel import KernelConvPlan, KernelPlan, NoisePlan
from convdkm.ops.norm import NormPlan
from convdkm.ops.pool import PoolPlan

Step = tuple[tuple[str, ...], Any]
"""An operation, with the names of the layers that it comes from."""


def fused(steps: Iterable[Step]) -> list[Step]:
    """The same steps, joined where they can be."""
    made: list[Step] = []
    for names, plan in steps:
        rest, both = plan, _joined(made, plan)
        if both is None:
            rest = plan.settled()
            split = rest.split()
            if split is not None and absorbed(made, split[0]):
                rest = split[1]
            both = _joined(made, rest)
        if both is None:
            made.append((names, rest))
        else:
            made[-1] = (made[-1][0] + names, both)
    return made


def _joined(steps: list[Step], plan: Plan) -> Plan | None:
    """The last step and an operation as one, if they are of a kind that can be."""
    join = PAIRS.get((type(steps[-1][1]), type(plan))) if steps else None
    return None if join is None else join(steps[-1][1], plan)


def absorbed(steps: list[Step], matrix: Tensor) -> bool:
    """Let the last step that touches ``it`` take ``it ← matrix · it`` into its weights, if it can.

    The list is changed then.
    """
    for index in reversed(range(len(steps))):
        names, plan = steps[index]
        if type(plan) is NoisePlan:
            continue
        made = plan.premultiplied(matrix)
        if made is not None:
            steps[index] = (names, made)
        return made is not None
    return False


def _kernel_noise(kernel: KernelPlan, noise: NoisePlan) -> Plan | None:
    if not kernel.joins:
        return None
    return kernel.but(ii=noise.ii, noises=(*kernel.noises, (noise.relative, noise.absolute)))


def _kernel_conv(kernel: KernelPlan, conv: ConvPlan) -> Plan | None:
    fits = conv.window.is_symmetric and not conv.window.is_point
    return KernelConvPlan(kernel, conv) if kernel.joins and fits else None


def _normalised(first: ConvPlan | GramPlan, norm: NormPlan) -> Plan | None:
    free = first.norm is None and norm.inducing is None and norm.is_number
    return first.but(ii=norm.ii, norm=norm) if free else None


def _kernel_conv_norm(both: KernelConvPlan, norm: NormPlan) -> Plan | None:
    conv = _normalised(both.conv, norm)
    return None if conv is None else both.but(ii=conv.ii, conv=conv)


def _gram_centre(gram: GramPlan, centre: CentrePlan) -> Plan | None:
    free = gram.norm is None and gram.centre is None
    if not free or centre.whitening is not None or not centre.centre.is_plain:
        return None
    # Centring works in coordinates W = T U with T orthogonal, since both whiten G_ii.
    turned = gram.spread @ gram.factor.T
    return gram.but(ii=centre.ii, spread=turned, factor=centre.factor, centre=centre)


def _gram_centring(gram: GramPlan, centring: Centring) -> Plan | None:
    free = gram.norm is None and gram.centre is None
    if not free or not gram.triangular or not centring.centre.is_plain:
        return None
    return gram.but(ii=centring.ii, centre=centring)  # U is F⁻¹G_it already


def _pool_centring(pool: PoolPlan, centring: Centring) -> Plan | None:
    if pool.centre is not None or not centring.centre.is_plain:
        return None
    return pool.but(ii=centring.ii, centre=centring.centre)


PAIRS: dict[tuple[type[Plan], type[Plan]], Callable[[Any, Any], Plan | None]] = {
    (KernelPlan, NoisePlan): _kernel_noise,
    (KernelPlan, ConvPlan): _kernel_conv,
    (ConvPlan, NormPlan): _normalised,
    (KernelConvPlan, NormPlan): _kernel_conv_norm,
    (GramPlan, NormPlan): _normalised,
    (GramPlan, Centring): _gram_centring,
    (GramPlan, CentrePlan): _gram_centre,
    (PoolPlan, Centring): _pool_centring,
}
"""What joins what. A class derived from one of these stands alone."""


def frozen(steps: Iterable[Step]) -> list[Step]:
    """Operations with constants, for prediction."""
    remaining, made = list(steps), list[Step]()
    while remaining:
        names, plan = remaining.pop()
        with located(*names):
            matrix, operation = plan.constant() if type(plan) in _SIMPLER else (None, plan.frozen())
        made.append((names, operation))
        if matrix is not None and not absorbed(remaining, matrix):
            made.append((names, MixPlan(matrix, matrix).frozen()))
    return made[::-1]


_SIMPLER = (GramPlan, KernelConvPlan)
"""Operations that are simpler, as constants, if ``it`` is multiplied by a matrix before."""

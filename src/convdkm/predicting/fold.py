r"""From a machine to its folded form: one function for every kind of plan.

Plans are folded from the last to the first. Each gives a step and, maybe, a matrix to be multiplied
from the left before it, which the plan before takes into its own weights where it can. Constants
are multiplied out in float64, and brought to the precision of the data path at the end.

A plan that is not known here, or that needs the statistics of its batch, is kept as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from convdkm.errors import located
from convdkm.gram import INDUCING_DTYPE
from convdkm.kernels import Angular, Kernel
from convdkm.kernels.plans import FusedConvPlan, FusedPlan, KernelPlan
from convdkm.layers.base import IdentityPlan, Plan, keeps
from convdkm.layers.compose import Chain, SkipPlan
from convdkm.layers.conv import ConvPlan, MixPlan
from convdkm.layers.gram_layer import GramPlan
from convdkm.layers.input import Input, PatchInput, VectorInput
from convdkm.layers.noise import NoisePlan
from convdkm.layers.norm import Centre, CentrePlan, Norm, NormPlan, RunningStatistics
from convdkm.layers.pool import FlattenPlan, PoolPlan
from convdkm.likelihoods import Categorical, Gaussian, Likelihood
from convdkm.predicting.base import FoldedList
from convdkm.predicting.compose import FoldedChain, FoldedSkip
from convdkm.predicting.ends import (
    FoldedBayes,
    FoldedCategorical,
    FoldedGaussian,
    FoldedHead,
    FoldedPatches,
    FoldedVectors,
    Outcome,
    Start,
)
from convdkm.predicting.kept import KeptInput, KeptLikelihood, KeptPlan
from convdkm.predicting.kernels import NotDescribableError, described
from convdkm.predicting.predictor import Predictor
from convdkm.predicting.steps import (
    FoldedAngularConv,
    FoldedCentre,
    FoldedConv,
    FoldedFlatten,
    FoldedGram,
    FoldedMix,
    FoldedNoise,
    FoldedNorm,
    FoldedPointwise,
    FoldedPool,
    Step,
)
from convdkm.runtime.compilable import compilable

if TYPE_CHECKING:
    from convdkm.model import DeepKernelMachine

BATCH_STATISTICS = (
    "normalises by the statistics of each batch (statistics='batch'), so that a prediction depends"
    " on its neighbours; model.calibrate(batches) and model.folded(deterministic=True) use running"
    " averages instead"
)
SAMPLES = "draws random samples; model.folded(deterministic=True) takes an integral in their place"
OWN = "is not one of the library's own, and there is no folded form of it"

AnyKernel = TypeVar("AnyKernel", bound=Kernel)
Front = Tensor | None
"""A matrix (or the diagonal of one) that ``it`` is to be multiplied by before a step."""


@torch.no_grad()
def fold(model: DeepKernelMachine, *, deterministic: bool = False) -> Predictor:
    """See :meth:`convdkm.DeepKernelMachine.folded`."""
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    if deterministic:
        _make_deterministic(frozen)
    plan = frozen.plan()
    plans: list[tuple[str, Plan]] = [("", plan.body)]
    if plan.head.whitening is not None:
        plans.append(("", MixPlan(plan.body.ii, plan.head.whitening)))
    with located("body"):
        body = folded_chain(plans)
    predictor = Predictor(
        start=_start(frozen.input),
        body=body,
        head=FoldedHead(mean=plan.head.mean, spread=plan.head.spread),
        outcome=_outcome(frozen.likelihood),
        sample_shape=frozen.input.sample_shape,
    )
    compiled = any(layer.compiled for layer in compilable(frozen))
    predictor.to(frozen.dtype).compile_elementwise(compiled)
    return predictor.eval()


def _make_deterministic(model: DeepKernelMachine) -> None:
    for module in model.modules():
        if isinstance(module, RunningStatistics):
            module.statistics = "running"
    likelihood = model.likelihood
    if isinstance(likelihood, Categorical) and likelihood.softmax is None:
        model.likelihood = Categorical(likelihood.num_outputs).to(model.device)


# -- chains ------------------------------------------------------------------------------------


def folded_chain(plans: list[tuple[str, Plan]]) -> Step:
    """The steps of some plans, one after the other."""
    remaining = _flat(plans)
    steps: list[tuple[str, Step]] = []
    while remaining:
        name, plan = remaining.pop()
        with located(name):
            front, step = _folded(plan)
        steps.append((name, step))
        if front is None or _taken(remaining, front):
            continue
        if isinstance(step, FoldedAngularConv):
            step.constants(inverse=front)
        else:
            steps.append((name, FoldedMix(matrix=front)))
    steps.reverse()
    parts = {f"step{number}": step for number, (_, step) in enumerate(steps, 1)}
    return FoldedChain(steps=FoldedList(**parts), names=tuple(name for name, _ in steps))


def _flat(plans: list[tuple[str, Plan]]) -> list[tuple[str, Plan]]:
    """Plans without chains among them, nor such as do nothing."""
    flat: list[tuple[str, Plan]] = []
    for name, plan in plans:
        if type(plan) is Chain:
            flat.extend(_flat([(_joined(name, inner), step) for inner, step in plan.steps]))
        elif type(plan) is not IdentityPlan:
            flat.append((name, plan))
    return flat


def _joined(*names: str) -> str:
    return ".".join(name for name in names if name)


def _taken(plans: list[tuple[str, Plan]], front: Tensor) -> bool:
    """Let the last plan that touches ``it`` take a matrix into its weights, if it can."""
    for index in reversed(range(len(plans))):
        name, plan = plans[index]
        if type(plan) is NoisePlan:
            continue
        absorbed = plan.premultiplied(front)
        if absorbed is not None:
            plans[index] = (name, absorbed)
        return absorbed is not None
    return False


# -- plans -------------------------------------------------------------------------------------


def _folded(plan: Plan) -> tuple[Front, Step]:
    if _uses_batch(plan):
        return None, KeptPlan(plan, BATCH_STATISTICS)
    if type(plan) not in _FOLDS or _is_own(plan):
        return None, KeptPlan(plan, OWN)
    return _FOLDS[type(plan)](plan)


def _statistics(plan: Any) -> list[RunningStatistics]:
    """The layers of a plan that take statistics of their batches."""
    if isinstance(plan, FusedConvPlan):
        plan = plan.conv
    found = [getattr(plan, "centre", None), getattr(plan, "norm", None)]
    layers = [each.norm if isinstance(each, NormPlan) else each for each in found]
    return [layer for layer in layers if isinstance(layer, RunningStatistics)]


def _uses_batch(plan: Plan) -> bool:
    return any(
        layer.statistics == "batch"
        and not (isinstance(layer, Norm) and layer.data not in ("batch", "location"))
        for layer in _statistics(plan)
    )


def _is_own(plan: Plan) -> bool:
    """Whether a plan of the library works with a user's own layer."""
    return any(type(layer) not in (Norm, Centre) for layer in _statistics(plan))


def _skip(plan: SkipPlan) -> tuple[Front, Step]:
    weight = float(plan.weight)
    sides = (("body", plan._body, plan.body), ("shortcut", plan._shortcut, plan.shortcut))
    folded = []
    for name, absorbed, side in sides:
        with located(name):
            folded.append(folded_chain([("", side if absorbed is None else absorbed)]))
    body, shortcut = folded
    return None, FoldedSkip(
        body=body,
        shortcut=shortcut,
        weight=weight,
        body_factor=weight if plan._body is None else 1.0,
        short_factor=1 - weight if plan._shortcut is None else 1.0,
    )


def _kernel(plan: KernelPlan) -> tuple[Front, Step]:
    step: Step = FoldedPointwise(kernel=_constant(plan.kernel), inducing=plan.inducing)
    step.obstacle = _obstacle(plan.kernel)
    if isinstance(plan, FusedPlan) and plan.noises:
        noises = [("", noise) for noise in plan.noises]
        after = [_noise(noise)[1] for _, noise in noises]
        parts = {f"step{index}": each for index, each in enumerate((step, *after), 1)}
        step = FoldedChain(steps=FoldedList(**parts), names=("",) * len(parts))
    return None, step


def _constant(kernel: AnyKernel) -> AnyKernel:
    """A kernel whose parameters are buffers."""
    for part in kernel.modules():
        for name, value in list(part._parameters.items()):
            del part._parameters[name]
            part.register_buffer(name, value)
    return kernel


def _obstacle(kernel: Kernel) -> str | None:
    """Why a kernel cannot be written to a file; None if it can."""
    try:
        described(kernel)
    except NotDescribableError as error:
        return f"cannot be written to a file: {error}"
    return None


def _fused_conv(plan: FusedConvPlan) -> tuple[Front, Step]:
    front, conv, kernel = plan.front, plan.conv, plan.front.kernel
    if (
        not isinstance(kernel, Angular)
        or kernel.degree != 1
        or kernel.shift
        or not keeps(kernel, Angular, "core", "variance")
        or bool((front.inducing <= 0).any())  # a kernel cannot be divided by a norm of zero
    ):
        return None, folded_chain([("", front), ("", conv)])
    scale = _number(conv.norm)
    slope, bias = (
        otherwise if each is None else float(each(front.inducing))
        for each, otherwise in zip(kernel.factors(), (1.0, 0.0), strict=True)
    )
    root = front.inducing.sqrt()
    own_slope, own_intercept = slope * float(kernel.of_cosine(root.new_ones(()))), bias
    for noise in front.noises:
        own_slope *= 1 + noise.relative
        own_intercept = (1 + noise.relative) * own_intercept + noise.absolute
    spread = root.reshape(-1, *(1,) * conv.window.ndim)
    step = FoldedAngularConv(
        kernel=_constant(kernel),
        weight=conv.weight * spread * (slope * scale),
        offset=bias / slope / root if bias else None,
        slope=own_slope * scale**2,
        intercept=own_intercept * scale**2,
        window=conv.window,
        border=conv.border,
    )
    step.obstacle = _obstacle(kernel)
    return root.reciprocal(), step


def _conv(plan: ConvPlan) -> tuple[Front, Step]:
    scale = _number(plan.norm)
    return None, FoldedConv(
        weight=plan.weight * scale, factor=scale**2, window=plan.window, border=plan.border
    )


def _mix(plan: MixPlan) -> tuple[Front, Step]:
    return None, FoldedMix(matrix=plan.matrix)


def _noise(plan: NoisePlan) -> tuple[Front, Step]:
    return None, FoldedNoise(slope=1 + plan.relative, intercept=plan.absolute)


def _gram(plan: GramPlan) -> tuple[Front, Step]:
    left, values, right = torch.linalg.svd(plan.spread, full_matrices=False)
    front = left.T if plan.whitening is None else left.T @ plan.whitening
    scale = _number(plan.norm)
    factor = plan.factor * scale
    shift = None if plan.centre is None else _mean(plan.centre)
    return front, FoldedGram(
        matrix=factor @ right.T * values,
        squares=values.square(),
        shift=None if shift is None else right @ shift,
        offset=None if shift is None else -(factor @ shift),
        factor=scale**2,
    )


def _centre(plan: CentrePlan) -> tuple[Front, Step]:
    shift = _mean(plan.centre)
    return plan.whitening, FoldedCentre(matrix=plan.out, shift=shift, offset=-(plan.out @ shift))


def _norm(plan: NormPlan) -> tuple[Front, Step]:
    own = plan.norm.data if plan.norm.data in ("image", "local") else "none"
    inducing = plan.inducing
    if inducing is not None and not inducing.ndim:
        inducing = inducing.expand(len(plan.ii))
    return inducing, FoldedNorm(own=own, constant=plan.norm.constant_factor())


def _pool(plan: PoolPlan) -> tuple[Front, Step]:
    return plan.whitening, FoldedPool(factor=plan.factor, window=plan.window)


def _flatten(plan: FlattenPlan) -> tuple[Front, Step]:
    return None, FoldedFlatten(weight=plan.weight)


_FOLDS: dict[type[Plan], Callable[[Any], tuple[Front, Step]]] = {
    SkipPlan: _skip,
    KernelPlan: _kernel,
    FusedPlan: _kernel,
    FusedConvPlan: _fused_conv,
    ConvPlan: _conv,
    MixPlan: _mix,
    NoisePlan: _noise,
    GramPlan: _gram,
    CentrePlan: _centre,
    NormPlan: _norm,
    PoolPlan: _pool,
    FlattenPlan: _flatten,
}


def _number(norm: NormPlan | None) -> float:
    """The one number of a normalisation that was joined to another plan."""
    constant = None if norm is None else norm.norm.constant_factor()
    return 1.0 if constant is None else float(constant)


def _mean(centre: Centre) -> Tensor:
    points = () if centre.running_mean is None else tuple(centre.running_mean.shape)
    return centre.current("running_mean", points, lambda: torch.empty(0), INDUCING_DTYPE)


# -- both ends ---------------------------------------------------------------------------------


def _start(source: Input) -> Start:
    if isinstance(source, PatchInput) and type(source) is PatchInput:
        weight = source.inducing / (source.in_channels * source.window.count)
        return FoldedPatches(weight=weight, window=source.window, border=source.border)
    if isinstance(source, VectorInput) and type(source) is VectorInput:
        return FoldedVectors(weight=source.inducing / source.in_features)
    return KeptInput(source, OWN)


def _outcome(likelihood: Likelihood) -> Outcome:
    if isinstance(likelihood, Categorical) and type(likelihood) is Categorical:
        if likelihood.softmax is None:
            return KeptLikelihood(likelihood, SAMPLES)
        return FoldedCategorical(samples=likelihood.samples)
    if isinstance(likelihood, Gaussian) and type(likelihood) is Gaussian:
        noise = float(likelihood.noise)
        if likelihood.classes:
            return FoldedBayes(
                noise=noise, codes=torch.eye(likelihood.num_outputs).to(likelihood.log_noise)
            )
        return FoldedGaussian(noise=noise)
    return KeptLikelihood(likelihood, OWN)

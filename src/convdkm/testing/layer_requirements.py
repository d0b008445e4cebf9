"""What every layer must fulfil: one function for each requirement."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from convdkm.gram import INDUCING_DTYPE, Gram
from convdkm.layers.base import Layer
from convdkm.numerics import cholesky, explained, mix, whiten
from convdkm.testing.outcome import (
    EQUAL,
    require,
    require_close,
    require_finite,
    require_not_negative,
)
from convdkm.testing.state_requirements import (
    STATE_REQUIREMENTS,
    Case,
    calling_changes_nothing,
)

PRECISE = 1e-9
"""Allowed difference in the inducing chain, relative to the largest entry."""

SCHUR = {torch.float32: 1e-3, torch.float64: 1e-7}
"""How far the variance left unexplained may lie below zero, relative to the largest."""

RIDGE = {torch.float32: 1e-5, torch.float64: 1e-10}
"""What is added to G_ii before it is inverted, relative to the mean of its diagonal."""


@dataclass
class LayerCase(Case):
    """A layer with something to try it on.

    Attributes:
        gram: the Gram it was initialised with.
        degenerate: one with zero, equal and opposite images.
    """

    noun = "layer"
    fresh: Layer
    tried: Layer
    gram: Gram
    degenerate: Gram

    @property
    def tolerance(self) -> float:
        return EQUAL[self.gram.dtype]

    def results(self, module: Layer) -> dict[str, Tensor]:
        """The blocks of the output, and one number that depends on all that the plan gives."""
        out = module(self.gram)
        blocks = {f"block {name}": getattr(out, name) for name in ("ii", "it", "tt")}
        return {**blocks, "the plan": _loss(module, self.gram)}

    def training_copy(self) -> Layer:
        """A copy in training mode, whose running statistics may change."""
        return copy.deepcopy(self.tried).train()

    @cached_property
    def output(self) -> Gram:
        """The layer's output in evaluation mode."""
        return self.tried(self.gram)

    @cached_property
    def outputs(self) -> dict[str, Gram]:
        """Its outputs in both modes, for both Grams."""
        return {
            "evaluation, random Gram": self.output,
            "evaluation, degenerate Gram": self.tried(self.degenerate),
            "training, random Gram": self.training_copy()(self.gram),
            "training, degenerate Gram": self.training_copy()(self.degenerate),
        }


def require_same(actual: Gram, expected: Gram, tolerance: float, what: str) -> None:
    """Raise if two Grams differ in a block."""
    for name, allowed in (("ii", PRECISE), ("it", tolerance), ("tt", tolerance)):
        require_close(getattr(actual, name), getattr(expected, name), allowed, f"{what}, {name}")


# -- the value of the output -------------------------------------------------------------------


def returns_gram(case: LayerCase) -> None:
    """The output is a finite Gram of as many images, ii in float64, the data's dtype kept."""
    for what, out in case.outputs.items():
        require(isinstance(out, Gram), f"{what}: the output is a {type(out).__name__}, not a Gram")
        require(out.ii.dtype == INDUCING_DTYPE, f"{what}: ii is {out.ii.dtype}")
        require(
            out.dtype == case.gram.dtype,
            f"{what}: data came as {case.gram.dtype}, left {out.dtype}",
        )
        given = len(case.degenerate if "degenerate" in what else case.gram)
        require(len(out) == given, f"{what}: {given} images came in, {len(out)} came out")
        for name in ("ii", "it", "tt"):
            require_finite(getattr(out, name), f"{name} ({what})")


def symmetric(case: LayerCase) -> None:
    """G_ii is symmetric."""
    for what, out in case.outputs.items():
        require_close(out.ii, out.ii.T, PRECISE, f"{what}: G_ii and its transpose")


def positive_semidefinite(case: LayerCase) -> None:
    """No eigenvalue of G_ii is negative."""
    for what, out in case.outputs.items():
        values = torch.linalg.eigvalsh(out.ii.detach())
        slack = PRECISE * float(values.abs().max())
        require_not_negative(values.min(), slack, f"{what}: smallest eigenvalue of G_ii")


def variances_not_negative(case: LayerCase) -> None:
    """g_tt ≥ 0, without slack: kernels take its square root."""
    for what, out in case.outputs.items():
        require_not_negative(out.tt.detach(), 0.0, f"{what}: g_tt")


def cauchy_schwarz(case: LayerCase) -> None:
    """|G_it|² ≤ G_ii · g_tt for every inducing point and every pixel."""
    for what, out in case.outputs.items():
        it, tt = out.it.detach().to(INDUCING_DTYPE), out.tt.detach().to(INDUCING_DTYPE)
        inducing = out.ii.detach().diagonal().reshape(-1, *(1,) * (it.ndim - 2))
        bound = inducing * tt.unsqueeze(1)
        slack = case.tolerance * bound.max()
        require_not_negative(bound - it.square(), slack, f"{what}: G_ii·g_tt − |G_it|²")


def schur_complement(case: LayerCase) -> None:
    """g_tt − G_ti G_ii⁻¹ G_it ≥ 0: the variance that the inducing points leave unexplained."""
    for what, out in case.outputs.items():
        ii, tt = out.ii.detach(), out.tt.detach().to(INDUCING_DTYPE)
        ridge = RIDGE[case.gram.dtype] * ii.diagonal().mean().expand(len(ii))
        factor = cholesky(ii + torch.diag(ridge), "the outgoing G_ii")
        columns = out.it.detach().to(INDUCING_DTYPE).movedim(1, 0)
        white = whiten(factor, columns.flatten(1)).reshape(columns.shape).movedim(0, 1)
        slack = SCHUR[case.gram.dtype] * tt.max()
        left = tt - explained(white)
        require_not_negative(left, slack, f"{what}: g_tt − G_ti G_ii⁻¹ G_it")


def kl_not_negative(case: LayerCase) -> None:
    """Every KL term is one finite float64 number, not negative, as is its weight ν."""
    for name, term in case.tried.plan(case.gram.ii).kl.items():
        what = f"the KL term '{name}'"
        require(term.value.shape == (), f"{what} has shape {tuple(term.value.shape)}")
        require(term.value.dtype == INDUCING_DTYPE, f"{what} is {term.value.dtype}")
        require(term.nu >= 0, f"{what} has weight {term.nu}")
        slack = PRECISE * case.gram.num_inducing
        require_not_negative(term.value.detach(), slack, what)


# -- what the output may depend on -------------------------------------------------------------


def permutes_images(case: LayerCase) -> None:
    """Images in another order give the same output in that order, in both modes."""
    order = torch.roll(torch.arange(len(case.gram)), 2)
    for mode, layer, other in (
        ("evaluation", case.tried, case.tried),
        ("training", case.training_copy(), case.training_copy()),
    ):
        expected, actual = layer(case.gram)[order], other(case.gram[order])
        what = f"{mode}: the output of permuted images, and the permuted output"
        require_same(actual, expected, case.tolerance, what)


def permutes_inducing(case: LayerCase) -> None:
    """Inducing points in another order give the same output in that order."""
    order = torch.roll(torch.arange(case.gram.num_inducing), 1)

    def permuted(gram: Gram) -> Gram:
        return Gram(gram.ii[order][:, order], gram.it[:, order], gram.tt)

    what = "permuted inducing points and permuted output"
    actual = case.tried(permuted(case.gram))
    require_same(actual, permuted(case.output), case.tolerance, what)


def batch_independent(case: LayerCase) -> None:
    """In evaluation an image alone gives what it gives in a batch."""
    for index in range(len(case.gram)):
        alone = case.tried(case.gram[index])
        what = f"image {index} alone and in the batch"
        require_same(alone, case.output[index], case.tolerance, what)


def inducing_block_free_of_data(case: LayerCase) -> None:
    """The outgoing G_ii depends on the incoming G_ii alone: the plan's, whatever the data."""
    plan = case.tried.plan(case.gram.ii)
    before = plan.ii.detach().clone()
    other = Gram(case.gram.ii, case.gram.it.flip(0) * 0.5, case.gram.tt.flip(0))
    for what, gram in (("the data", case.gram), ("other data", other)):
        plan(gram)
        require(torch.equal(plan.ii, before), f"plan.ii changed when the plan was given {what}")
        require_close(case.tried(gram).ii, before, PRECISE, f"layer(gram).ii and plan.ii, {what}")


# -- plans -------------------------------------------------------------------------------------


def plan_is_the_layer(case: LayerCase) -> None:
    """``layer.plan(ii)(gram)`` is ``layer(gram)``, as often as it is called."""
    plan = case.tried.plan(case.gram.ii)
    for what in ("the plan's first result", "the plan's second result"):
        require_same(plan(case.gram), case.output, case.tolerance, f"{what} and the layer's")


def split_contract(case: LayerCase) -> None:
    """``it ← matrix · it`` followed by the rest of ``plan.split()`` is the plan."""
    plan = case.tried.plan(case.gram.ii)
    split = plan.split()
    if split is None:
        return
    matrix, rest = split
    it, tt = rest.data(mix(matrix, case.gram.it), case.gram.tt)
    what = "the plan, and its split: matrix then rest"
    require_same(Gram(rest.ii, it, tt), case.output, case.tolerance, what)
    require_same(plan(case.gram), case.output, case.tolerance, "the plan after split()")


def premultiplied_contract(case: LayerCase) -> None:
    """``plan.premultiplied(M)`` is the plan followed by ``it ← M · it``.

    M may be a diagonal, or a scalar.
    """
    plan = case.tried.plan(case.gram.ii)
    split = plan.split()
    plans = {"plan": plan} | ({"the rest of plan.split()": split[1]} if split else {})
    size, generator = case.output.num_inducing, torch.Generator().manual_seed(case.seed)
    shapes: dict[str, tuple[int, ...]]
    shapes = {"a matrix": (size + 1, size), "a diagonal": (size,), "a scalar": ()}
    for name, plan in plans.items():
        expected_it, expected_tt = plan.data(case.gram.it, case.gram.tt)
        for kind, shape in shapes.items():
            matrix = torch.randn(shape, generator=generator, dtype=INDUCING_DTYPE)
            absorbed = plan.premultiplied(matrix)
            if absorbed is None:
                continue
            it, tt = absorbed.data(case.gram.it, case.gram.tt)
            what = f"{name}.premultiplied({kind}), and {kind} times its output"
            require_close(it, mix(matrix, expected_it), case.tolerance, f"{what}, it")
            require_close(tt, expected_tt, case.tolerance, f"{what}, tt")
            again, _ = plan.data(case.gram.it, case.gram.tt)
            what = f"{name} after premultiplied({kind}), it"
            require_close(again, expected_it, case.tolerance, what)


# -- derivatives and state ---------------------------------------------------------------------


def _loss(layer: Layer, gram: Gram) -> Tensor:
    """One number that depends on everything a layer gives."""
    plan = layer.plan(gram.ii)
    out = plan(gram)
    blocks = [block.to(INDUCING_DTYPE) for block in (out.ii, out.it, out.tt)]
    weights = [torch.linspace(0.5, 1.5, b.numel(), dtype=b.dtype).reshape(b.shape) for b in blocks]
    parts = [(w * b).sum() for w, b in zip(weights, blocks, strict=True)]
    return torch.stack([*parts, *(term.weighted for term in plan.kl.values())]).sum()


def gradients_finite(case: LayerCase) -> None:
    """Derivatives by parameters and by inputs are finite, also where images are degenerate."""
    for kind, gram in (("random", case.gram), ("degenerate", case.degenerate)):
        for mode, layer in (("evaluation", case.tried), ("training", case.training_copy())):
            leaves = {
                name: getattr(gram, name).detach().clone().requires_grad_()
                for name in ("ii", "it", "tt")
            }
            parameters = {n: p for n, p in layer.named_parameters() if p.requires_grad}
            loss = _loss(layer, Gram(**leaves))
            sources = [*leaves.values(), *parameters.values()]
            gradients = torch.autograd.grad(loss, sources, allow_unused=True)
            for name, gradient in zip([*leaves, *parameters], gradients, strict=True):
                if gradient is not None:
                    what = f"the gradient by {name} ({mode}, {kind} Gram)"
                    require_finite(gradient, what)


def initialise_returns_output(case: LayerCase) -> None:
    """``initialise(gram)`` returns what the layer then gives for that Gram."""
    layer = copy.deepcopy(case.fresh).train()
    returned = layer.initialise(case.gram)
    what = "the Gram returned by initialise, and that of the layer"
    require_same(returned, layer(case.gram), case.tolerance, what)


LAYER_REQUIREMENTS: tuple[Callable[[LayerCase], None], ...] = (
    calling_changes_nothing,  # first, before anything else has called the layer
    returns_gram,
    symmetric,
    positive_semidefinite,
    variances_not_negative,
    cauchy_schwarz,
    schur_complement,
    kl_not_negative,
    initialise_returns_output,
    inducing_block_free_of_data,
    plan_is_the_layer,
    split_contract,
    premultiplied_contract,
    permutes_images,
    permutes_inducing,
    batch_independent,
    gradients_finite,
    *STATE_REQUIREMENTS,
)

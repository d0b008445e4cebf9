r"""The optimiser that a recipe asks for: Adam with rates by kind, Muon, natural steps, averages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, Literal

import torch
from torch import Tensor, nn

from convdkm.config import Recipe
from convdkm.errors import InvalidInputError
from convdkm.head import GPHead
from convdkm.layers.conv import Mixing
from convdkm.layers.gram_layer import GramLayer
from convdkm.layers.input import Input
from convdkm.layers.norm import Norm
from convdkm.layers.pool import Flatten
from convdkm.likelihoods import Gaussian
from convdkm.model import DeepKernelMachine
from convdkm.numerics import inverse_square_root
from convdkm.training.build import precision_on

Kind = Literal["mixing", "gram", "head", "input", "noise", "rest"]
Method = Literal["adam", "muon", "natural", "head"]
Treatment = tuple[float, Method]
"""What the schedule's rate is multiplied by, and what takes the step."""
BASE_WIDTH = 16
"""Inducing points at which width transfer leaves the rate as it is."""
MOMENTUM = 0.95
"""Of Muon."""
COEFFICIENTS, ITERATIONS = (3.4445, -4.7750, 2.0315), 5
"""Of the Newton–Schulz iteration; they take singular values from 0.01 to 1 close to 1 soonest."""
SMALLEST = 0.5
"""What a step of the head leaves of its precision, in any direction, at the least."""
LARGEST_LOG_SCALE = 10.0
"""Of a normalisation. A scale before a homogeneous kernel and another normalisation changes
nothing, and rounding alone moves it: without a bound it may grow until variances overflow."""
_AVERAGES: dict[Method, int] = {"adam": 2, "muon": 1, "natural": 1, "head": 0}
"""How many averages of the size of a parameter each kind of step keeps."""
_KINDS: tuple[tuple[Any, tuple[str, ...], Kind], ...] = (
    ((Mixing, Flatten), ("weight",), "mixing"),
    (GramLayer, ("factor",), "gram"),
    (GPHead, ("mean", "factor"), "head"),
    (Input, ("inducing",), "input"),
    (Gaussian, ("log_noise",), "noise"),
)


def kinds(model: nn.Module) -> dict[nn.Parameter, Kind]:
    """What each parameter is, in the order of ``model.parameters()``.

    ``"mixing"`` are the mixing weights C, ``"gram"`` the factors of learned Gram matrices,
    ``"head"`` the mean and the factor of the covariance of the top layer, ``"input"`` the inducing
    inputs, ``"noise"`` that of a Gaussian likelihood, and ``"rest"`` scales and hyperparameters of
    kernels.
    """
    found: dict[nn.Parameter, Kind] = dict.fromkeys(model.parameters(), "rest")
    for module in model.modules():
        for types, names, kind in _KINDS:
            if isinstance(module, types):
                own = dict(module.named_parameters(recurse=False))
                found |= {own[name]: kind for name in names if name in own}
    return found


class Descent(torch.optim.Adam):
    r"""Adam, Muon and averages of weights, on parameters that say how they are treated.

    Muon takes C as a matrix of shape :math:`P'\times PD`, with the gradient g and :math:`\mu=0.95`:

    .. math::
        M &\leftarrow \mu M + (1-\mu)\,g, \qquad N = \mu M + (1-\mu)\,g, \\
        O &= (NN^T)^{-1/2}N, \\
        C &\leftarrow |C|\;\frac{\hat C - \eta\,\hat O}{|\hat C - \eta\,\hat O|},
        \qquad \hat C = C/|C|,\ \hat O = O/|O|,

    where :math:`|\cdot|` is the Frobenius norm: C turns by about η in a direction whose singular
    values are equal, and keeps its norm. So the rate is relative and does not depend on width or
    parameterisation. O comes from five Newton–Schulz iterations, whose products with N are in
    float32 or bfloat16 as the recipe says.

    Averages of weights are taken by :meth:`look_ahead`.

    Parameters stay in the order in which they are given, in groups of neighbours that are treated
    alike: a state that was saved fits whatever the rates are now.

    Args:
        treated: every parameter with what the schedule's rate is multiplied by, and with what takes
            its steps.
        recipe: how they are trained.
        device: where they are.
    """

    def __init__(
        self, treated: Iterable[tuple[Tensor, Treatment]], recipe: Recipe, device: torch.device
    ) -> None:
        first, second = recipe.betas
        groups = [
            {"params": [p for p, _ in some], "factor": factor, "method": method}
            for (factor, method), some in groupby(treated, key=lambda each: each[1])
        ]
        super().__init__(groups, lr=recipe.learning_rate, betas=(first, second), fused=True)
        self.lookahead, self.lookahead_rate = recipe.lookahead, recipe.lookahead_rate
        lower = precision_on(device, recipe.precision) == "bfloat16"
        self._dtype = torch.bfloat16 if lower else torch.float32

    @classmethod
    def adam(cls, parameters: Iterable[Tensor], recipe: Recipe, device: torch.device) -> Descent:
        """Adam for all parameters."""
        return cls(((p, (1.0, "adam")) for p in parameters), recipe, device)

    def set_rate(self, rate: float) -> None:
        """Set the rates of the next step, given the schedule's."""
        for group in self.param_groups:
            group["lr"] = rate * group["factor"]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step by the gradients that the parameters have."""
        groups = self.param_groups
        starts = self._starts() if self.lookahead else {}
        try:
            self.param_groups = [group for group in groups if group["method"] == "adam"]
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group["method"] != "adam":
                self._take(group)
        for parameter, start in starts.items():
            self.state[parameter]["slow"] = start
        return loss

    def _take(self, group: dict[str, Any]) -> None:
        """The steps of a group that Adam does not take."""
        for parameter in group["params"]:
            if parameter.grad is not None:
                self._turn(parameter, group)

    def _starts(self) -> dict[Tensor, Tensor]:
        """Copies of the parameters that are about to take their first step."""
        moving = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        return {p: p.clone() for p in moving if "slow" not in self.state.get(p, ())}

    @torch.no_grad()
    def look_ahead(self, steps: int, *, last: bool) -> None:
        r"""Average the parameters after so many steps, where the recipe says so, and go on there.

        After every k-th step, and after the last one of training (Zhang et al., 2019),

        .. math::
            \tilde\theta \leftarrow \tilde\theta + r\,(\theta - \tilde\theta), \qquad
            \theta \leftarrow \tilde\theta,

        for every parameter, with the rate r of the recipe and slow weights :math:`\tilde\theta`
        that start where training does. What is averaged are factors of Gram matrices, so that these
        remain positive. The average of two weights of equal norm is shorter than they are; so where
        Muon keeps the norm of mixing weights, :math:`\tilde\theta` is scaled back to the norm that
        it had. Training ends on slow weights. With a learning rate that decays to zero, the last
        steps are so short that :math:`\theta` and :math:`\tilde\theta` agree by then.
        """
        if not self.lookahead or (steps % self.lookahead and not last):
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                slow = self.state.get(parameter, {}).get("slow")
                if slow is None:
                    continue
                norm = slow.norm()
                slow.lerp_(parameter, self.lookahead_rate)
                if group["method"] == "muon":
                    slow.mul_(norm / slow.norm().clamp(min=torch.finfo(slow.dtype).tiny))
                parameter.copy_(slow)

    def _begun(
        self, parameter: Tensor, *, average: bool = True
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The state of a parameter in the step under way, and its gradient."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            if average:
                state["exp_avg"] = torch.zeros_like(parameter)
        state["step"] += 1
        return state, gradient

    def _turn(self, parameter: Tensor, group: dict[str, Any]) -> None:
        """A step of Muon."""
        state, gradient = self._begun(parameter)
        rate = group["lr"]
        average = state["exp_avg"].lerp_(gradient, 1 - MOMENTUM)
        update = orthogonalised(gradient.lerp(average, MOMENTUM).flatten(1), self._dtype)
        update = update.to(parameter.dtype)
        norm = parameter.norm()
        parameter.sub_(update.view_as(parameter) * (rate * norm / update.norm().clamp(min=1e-7)))
        parameter.mul_(norm / parameter.norm().clamp(min=torch.finfo(parameter.dtype).tiny))


class Optimiser(Descent):
    r"""Adam on a machine, with a rate for each kind of parameter, or other steps for some kinds.

    Adam's rate is :math:`\eta_t` of the schedule times the recipe's factor for the kind of the
    parameter. For mixing weights :math:`C\in\mathbb R^{P'\times P\times D}` it is also multiplied
    by :math:`\sqrt{16/P}` or :math:`16/P` where ``width_transfer`` is ``root`` or ``linear``: a
    step of Adam moves every entry of C by about :math:`\eta`, and so a row of P entries by
    :math:`\sqrt P\,\eta` (or by :math:`P\,\eta` along a direction that the entries agree on), while
    rows have the same length at any width.

    Natural steps take a Gram layer's factor F as that of the covariance :math:`G = FF^T` of a
    Gaussian. In its metric, :math:`|dG|^2 = \tfrac12|F^{-1}\,dG\,F^{-T}|^2`, the gradient is a
    symmetric matrix relative to F. With :math:`\Phi` the lower triangle of a matrix with half of
    its diagonal, g the gradient by F, and Adam's weights :math:`\beta` and correction of averages,

    .. math::
        T &= \Phi(F^Tg), \qquad
        M \leftarrow \beta_1M + (1-\beta_1)\,T, \qquad
        v \leftarrow \beta_2v + (1-\beta_2)\,|T + T^T|^2/P, \\
        F &\leftarrow F\,(I - \eta M/\sqrt v),

    so that a step changes G by up to about η of itself (the root of the mean square of the
    eigenvalues of :math:`G^{-1}dG`), whatever the scale and the parameterisation of F, which
    remains triangular if it is.

    Natural steps of the head are those of :math:`Q=\prod_\lambda N(\mu_\lambda, A)`, a member of
    an exponential family. With :math:`A=RR^T` (R is the factor over its divisor), the gradients
    :math:`g_R` and :math:`g_\lambda` of minus the objective by R and :math:`\mu_\lambda`, and C
    outputs that share A (:math:`C=1` where each has its own), a step goes the share η of the way in
    natural parameters:

    .. math::
        B &= I + \tfrac{\eta n}C\,\tfrac12(R^Tg_R + g_R^TR), \qquad
        R \leftarrow R\,B^{-1/2}, \\
        \mu_\lambda &\leftarrow \mu_\lambda - \eta n\,RR^Tg_\lambda \quad\text{with the new R}.

    Here n is the number N of training images, times the number of outputs where the objective takes
    the mean of their KL. The precision becomes :math:`R^{-T}BR^{-1}`: :math:`1-\eta` times what it
    was, and η times that of the posterior under a Gaussian likelihood with the curvature of the
    expected log-likelihood (Khan and Lin, 2017). So with all images, a Gaussian likelihood and
    :math:`\eta=1`, a step reaches the optimum. Eigenvalues of B count as ½ at least, so that no
    variance more than doubles. These steps keep no averages. By the second-order form of the KL
    they would overshoot where a posterior is much narrower than its prior, so that it is refused.

    Logarithms of the scales of normalisations stay between ±10. Muon and averages of weights are
    those of :class:`Descent`. Parameters are in the order of
    ``model.parameters()``.

    Args:
        model: the machine.
        recipe: how it is trained.
        num_data: N, that of the objective.
    """

    def __init__(self, model: DeepKernelMachine, recipe: Recipe, *, num_data: int) -> None:
        if recipe.head_natural_rate and model.head.kl == "taylor":
            raise InvalidInputError(
                "head_natural_rate goes with the head's KL itself (kl='exact'): by its expansion,"
                " kl='taylor', natural steps overshoot; leave head_natural_rate at 0"
            )
        treated = ((p, _treatment(recipe, kind, p)) for p, kind in kinds(model).items())
        super().__init__(treated, recipe, model.device)
        norms = [module for module in model.modules() if isinstance(module, Norm)]
        self._log_scales = [p for norm in norms for p in norm.parameters(recurse=False)]
        self._head = model.head
        self._images = num_data * (model.head.num_outputs if model.head_kl == "mean" else 1)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = super().step(closure)
        for parameter in self._log_scales:
            parameter.clamp_(-LARGEST_LOG_SCALE, LARGEST_LOG_SCALE)
        return loss

    def _take(self, group: dict[str, Any]) -> None:
        if group["method"] == "head":
            self._infer(group["lr"])
        elif group["method"] == "natural":
            for factor in group["params"]:
                if factor.grad is not None:
                    self._stretch(factor, group)
        else:
            super()._take(group)

    def _stretch(self, factor: Tensor, group: dict[str, Any]) -> None:
        """A natural step of the factor of a Gram matrix."""
        state, gradient = self._begun(factor)
        square = state.setdefault("mean_square", factor.new_zeros(()))
        relative = (factor.T @ gradient).tril()
        relative.diagonal().mul_(0.5)
        first, second = group["betas"]
        average = state["exp_avg"].lerp_(relative, 1 - first)
        square.lerp_((relative + relative.T).square().sum() / len(factor), 1 - second)
        steps = int(state["step"])
        corrected = (square / (1 - second**steps)).sqrt().clamp(min=torch.finfo(square.dtype).tiny)
        rate = group["lr"] / (1 - first**steps)
        factor.sub_(factor @ average * (rate / corrected))

    def _infer(self, rate: float) -> None:
        """A natural step of the head."""
        mean, factor, weight = self._head.mean, self._head.factor, rate * self._images
        if factor.grad is not None:
            inner = factor.mT @ self._begun(factor, average=False)[1]
            shared = len(mean) if factor.ndim == 2 else 1
            change = (inner + inner.mT) * (weight / (2 * shared))
            change.diagonal(dim1=-2, dim2=-1).add_(1)
            factor.copy_(factor @ inverse_square_root(change, smallest=SMALLEST))
        if mean.grad is not None:
            spread = factor / self._head.divisor
            gradient = self._begun(mean, average=False)[1].unsqueeze(-1)
            step = spread @ (spread.mT @ gradient)
            mean.sub_(step.squeeze(-1), alpha=weight)


def bytes_of_state(model: DeepKernelMachine, recipe: Recipe) -> int:
    """How much the averages take that an :class:`Optimiser` keeps."""

    def copies(kind: Kind, parameter: nn.Parameter) -> int:
        _, method = _treatment(recipe, kind, parameter)
        return _AVERAGES[method] + (recipe.lookahead > 0)

    return sum(p.nbytes * copies(kind, p) for p, kind in kinds(model).items())


def by_muon(recipe: Recipe) -> Treatment:
    """How parameters are treated that Muon takes the steps of."""
    return recipe.muon_rate / recipe.learning_rate, "muon"


def _treatment(recipe: Recipe, kind: Kind, parameter: Tensor) -> Treatment:
    if kind == "gram" and recipe.natural_rate:
        return recipe.natural_rate / recipe.learning_rate, "natural"
    if kind == "mixing":
        if recipe.optimiser == "muon":
            return by_muon(recipe)
        power = {"none": 0.0, "root": 0.5, "linear": 1.0}[recipe.width_transfer]
        return recipe.mixing_rate * (BASE_WIDTH / parameter.shape[1]) ** power, "adam"
    if kind == "head" and recipe.head_natural_rate:
        return recipe.head_natural_rate / recipe.learning_rate, "head"
    factors: dict[Kind, float] = {
        "gram": recipe.gram_rate,
        "head": recipe.head_rate,
        "input": recipe.input_rate,
        "noise": recipe.noise_rate,
    }
    return factors.get(kind, 1.0), "adam"


def orthogonalised(matrix: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    r"""Nearly :math:`(NN^T)^{-1/2}N`, the nearest matrix whose singular values are all one.

    By the quintic Newton–Schulz iteration :math:`X \leftarrow B X` with :math:`A = XX^T` and
    :math:`B = aI + bA + cA^2`, from :math:`X = N/|N|`. All that a step needs of X is A, which
    becomes :math:`BAB`, so that only the first A and the last X are products with the wide matrix.
    ``torch.optim.Muon`` has the same iteration on X itself, under a private name, in bfloat16 and
    for parameters that are matrices.

    Args:
        matrix: N.
        dtype: of the two products with the wide matrix; the iteration is in float32.
    """
    a, b, c = COEFFICIENTS
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    start = (wide / wide.norm().clamp(min=torch.finfo(wide.dtype).tiny)).to(dtype)
    gram = (start @ start.T).float()
    factors = None
    for _ in range(ITERATIONS):
        step = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        step.diagonal().add_(a)
        gram = step @ gram @ step
        factors = step if factors is None else step @ factors
    assert factors is not None
    result = factors.to(dtype) @ start
    return result if wide is matrix else result.T

r"""The full-rank machine: every layer learns the Gram matrix of all training data (Eq. 5)."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from convdkm.checks import check_choice, check_positive, one_per_layer
from convdkm.choices import Parameterisation
from convdkm.errors import (
    ConvDKMError,
    GramError,
    InvalidInputError,
    NotInitialisedError,
    NumericalError,
    located,
)
from convdkm.exact.conv import BLOCK_ENTRIES, propagate
from convdkm.exact.full_rank import FullRankGram, GramSizes, StartingGram
from convdkm.exact.layers import LearnedGram
from convdkm.exact.natural import MEMORY, Coordinates, FactorCoordinates, newton_steps
from convdkm.exact.regression import GPRegression
from convdkm.exact.spatial import SpatialGram
from convdkm.gram import INDUCING_DTYPE
from convdkm.head import GPHead, Marginals
from convdkm.kernels import ArcCosine, Kernel
from convdkm.layers import GramLayer, Layer, LayerKL, Sequential
from convdkm.layers.base import keep_dtype, keeps
from convdkm.layers.compose import prefixed
from convdkm.likelihoods import Gaussian, Likelihood
from convdkm.model import in_mode
from convdkm.prediction import Prediction
from convdkm.runtime.memory import available_memory

Method = Literal["natural", "lbfgs", "adam"]

MATRICES_OF_A_LAYER = 4 * MEMORY + 18
"""Matrices of the size of G that a Gram layer and the solver hold for it while they train."""

_OF_NOISE: dict[str, Any] = {"noise": 0.1, "learn_noise": False}
"""Options of the noise, and what they are by default."""

_LOWERING = 4.0
"""What ν is divided by between two stages of a fit that begins with a larger one."""


@dataclass(frozen=True, eq=False)
class ExactObjective:
    r"""The objective of Eq. 5 and its parts, summed over all data; to be maximised.

    .. math:: \mathcal L = \log P(Y|G^L)
              - \sum_\ell \nu_\ell D_{KL}(N(0, G^\ell) \| N(0, K(G^{\ell-1})))

    Attributes:
        log_likelihood: :math:`\log P(Y|G^L)` in nats, for Gaussian noise; for other likelihoods its
            lower bound :math:`E_Q[\log P(Y|F)] - D_{KL}(Q(F) \| P(F|G^L))`.
        kl: each Gram layer's divergence and weight, by the layer's name.
        evaluations: how often the fit that found it has evaluated the objective and its gradient.
    """

    log_likelihood: Tensor
    kl: dict[str, LayerKL]
    evaluations: int = 0

    @property
    def regulariser(self) -> Tensor:
        r""":math:`\sum_\ell \nu_\ell D_{KL}^\ell`."""
        terms = [term.weighted for term in self.kl.values()]
        return torch.stack(terms).sum() if terms else torch.zeros_like(self.log_likelihood)

    @property
    def total(self) -> Tensor:
        """The objective itself."""
        return self.log_likelihood - self.regulariser

    def detach(self) -> ExactObjective:
        kl = {name: LayerKL(term.value.detach(), term.nu) for name, term in self.kl.items()}
        return ExactObjective(self.log_likelihood.detach(), kl, self.evaluations)

    def __repr__(self) -> str:
        value = self.detach()
        layers = ", ".join(f"{name}: {float(term.value):.6g}" for name, term in value.kl.items())
        return (
            f"ExactObjective(total={float(value.total):.6g},"
            f" log_likelihood={float(value.log_likelihood):.6g}, kl={{{layers}}})"
        )


def fully_connected_body(
    depth: int = 2,
    *,
    kernel: Kernel | None = None,
    nu: float | Sequence[float] = 1.0,
    parameterisation: Parameterisation = "direct",
    initial_scale: float = 1.0,
) -> Sequential:
    """The layers of a full-rank machine on vectors: a kernel and a Gram, L times, and a kernel.

    Args:
        depth: L, the number of learned Gram matrices.
        kernel: copied for every layer; ``ArcCosine()`` by default.
        nu: one number or one for each layer.
        parameterisation, initial_scale: see :class:`LearnedGram`.
    """
    if not isinstance(depth, int) or depth < 0:
        raise InvalidInputError(f"depth must be an integer of at least 0, got {depth!r}")
    kernel = ArcCosine() if kernel is None else kernel
    body: dict[str, Layer] = {}
    for index, weight in enumerate(one_per_layer("nu", nu, depth), 1):
        gram = LearnedGram(weight, parameterisation=parameterisation, initial_scale=initial_scale)
        body[f"layer{index}"] = Sequential({"kernel": copy.deepcopy(kernel), "gram": gram})
    body["kernel"] = copy.deepcopy(kernel)
    return Sequential(body)


class FullRankDKM(nn.Module):
    r"""A deep kernel machine that learns the Gram matrix of all training data in every layer.

    From vectors X it takes :math:`G^0 = \tfrac1{N_0} X X^T` (Eq. 4), from images the Gram of all
    pixels of all images (Eq. 10), and maximises Eq. 5 over :math:`G^1, \dots, G^L`. A vector is an
    image with one place: of P images of S places, G has P·S rows. It is the truth that the sparse
    machine tends to as its inducing points become the training data, and costs their number
    cubed; it is for small problems.

    Gaussian noise is integrated out in closed form (:class:`GPRegression`). Other likelihoods have
    a Gaussian posterior over the functions at the training points (:class:`convdkm.GPHead`).

    New points are predicted layer by layer from the training points, as :class:`GramLayer` does
    from inducing points.

    >>> import torch
    >>> from convdkm.exact import FullRankDKM
    >>> x = torch.linspace(-1, 1, 8)[:, None] + torch.tensor([0.0, 1.0])
    >>> machine = FullRankDKM.from_data(x, x.sin().sum(1), depth=2, nu=1.0)
    >>> history = machine.fit()
    >>> bool(history[-1].total > history[0].total)
    True
    >>> machine.predict(x).mean.shape
    torch.Size([8, 1])

    Images have a body with a :class:`LearnedGram` wherever a Gram is learned:

    >>> import convdkm as dkm
    >>> from convdkm.exact import Convolution, LearnedGram
    >>> body = dkm.Sequential(
    ...     Convolution(3),
    ...     *(dkm.ArcCosine(), Convolution(3, stride=2), LearnedGram(nu=1.0)),
    ...     *(dkm.ArcCosine(), dkm.GlobalAveragePool()),
    ... )
    >>> images, labels = torch.randn(6, 3, 4, 4), torch.tensor([0, 1, 0, 1, 0, 1])
    >>> machine = FullRankDKM.from_data(images, labels, body=body, likelihood=dkm.Categorical(2))
    >>> machine.predict(images).probs.shape
    torch.Size([6, 2])

    Args:
        shape: that of the training inputs: ``(P, N0)``, or ``(P, C, *space)``.
        body: the layers, which the machine copies; space must be collapsed at their end. All that
            an :class:`ExactKernel` takes, with :class:`LearnedGram` or Gram layers of P·S inducing
            points. For vectors there is :func:`fully_connected_body`.
        likelihood: how targets depend on the top-layer functions.

    Everything is float64. The training data are buffers, and part of the ``state_dict``.

    Raises:
        InvalidInputError: training would need more memory than there is.
    """

    inputs: Tensor
    targets: Tensor
    initialised: Tensor
    head: GPHead | None

    def __init__(self, shape: Sequence[int], body: Layer, likelihood: Likelihood) -> None:
        super().__init__()
        for name, value, kind in (("body", body, Layer), ("likelihood", likelihood, Likelihood)):
            if not isinstance(value, kind):
                raise InvalidInputError(f"{name} must be a {kind.__name__}, got {value!r}")
        if len(shape) < 2:
            raise InvalidInputError(
                f"shape must be (P, N0) for vectors or (P, C, *space) for images, got {shape!r}"
            )
        names = ("num_points", "in_features", *("each length of space",) * (len(shape) - 2))
        for name, length in zip(names, shape, strict=True):
            check_positive(**{name: length})
        self.body = _sized(copy.deepcopy(body), tuple(shape))
        self.likelihood = likelihood
        self.head = None
        if not self.is_conjugate:
            self.head = GPHead(shape[0], likelihood.num_outputs, parameterisation="whitened")
        self.register_buffer("inputs", torch.zeros(tuple(shape), dtype=INDUCING_DTYPE))
        self.register_buffer("targets", torch.zeros(0))
        self.register_buffer("initialised", torch.tensor(False))

    @classmethod
    def from_data(
        cls,
        inputs: Tensor,
        targets: Tensor,
        *,
        body: Layer | None = None,
        likelihood: Likelihood | None = None,
        **options: Any,
    ) -> FullRankDKM:
        """A machine of the right size for these data, with them.

        Args:
            inputs: X, ``(P, N0)``; or images ``(P, C, *space)``.
            targets: as the likelihood takes them: for Gaussian noise ``(P, outputs)``, or ``(P,)``
                for one output.
            body: as in :class:`FullRankDKM`; by default that of :func:`fully_connected_body`, for
                vectors.
            likelihood: Gaussian noise by default.
            options: where no body is given, those of :func:`fully_connected_body`; where no
                likelihood is given, ``noise`` (0.1), the variance of the noise, and ``learn_noise``
                (False). With few outputs and a small ν the Gram matrices can explain every target,
                and the noise that is learned then tends to zero.
        """
        axes = range(2, 6) if body is not None else (2,)
        for name, value, allowed in (("inputs", inputs, axes), ("targets", targets, (1, 2))):
            if not isinstance(value, Tensor) or value.ndim not in allowed:
                shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                images = "" if name == "targets" else "; for images give the layers as body=..."
                raise InvalidInputError(
                    f"{name} must be a matrix, one row a point; got {shape}{images}"
                )
        noise = {name: options.pop(name) for name in _OF_NOISE if name in options}
        for given, unused in ((likelihood, noise), (body, options)):
            if given is not None and unused:
                raise InvalidInputError(
                    f"{', '.join(unused)} cannot be given together with {type(given).__name__},"
                    " which has such options of its own; set them there"
                )
        if likelihood is None:
            outputs = 1 if targets.ndim == 1 else targets.shape[1]
            likelihood = Gaussian(outputs, **{**_OF_NOISE, **noise})
        body = fully_connected_body(**options) if body is None else body
        machine = cls(inputs.shape, body, likelihood)
        return machine.to(inputs.device).initialise(inputs, targets)

    @property
    def num_points(self) -> int:
        """P, the number of training points."""
        return self.inputs.shape[0]

    @property
    def is_conjugate(self) -> bool:
        """Whether the top layer is integrated out in closed form."""
        return keeps(self.likelihood, Gaussian, "expected_log_prob")

    @torch.no_grad()
    def initialise(self, inputs: Tensor, targets: Tensor) -> FullRankDKM:
        """Set the training data, and all that is learned to where it starts; return the machine."""
        self._check(inputs)
        if len(inputs) != self.num_points:
            raise InvalidInputError(
                f"this machine was made for {self.num_points} points, got {len(inputs)}"
            )
        targets = self.likelihood.check_targets(targets, len(inputs))
        self.inputs.copy_(inputs)
        if targets.is_floating_point():
            targets = targets.to(INDUCING_DTYPE)
        self.targets = targets.detach().to(self.inputs.device).clone()
        self.initialised.fill_(True)
        self._propagated(StartingGram.of_images(self.inputs))
        if self.head is not None:
            self.head.draw()
        return self

    # -- the machine ---------------------------------------------------------------------------

    def grams(self) -> list[Tensor]:
        r""":math:`G^0, \dots, G^L`: the representations that were learned.

        Each has a row for every training point; for images one for every place of every image.
        """
        first, last = self._trained()
        return [first.matrix(), *(plan.ii for plan in last.plans.values())]

    def objective(self) -> ExactObjective:
        """The objective on the training data, to be maximised."""
        _, gram = self._trained()
        names = {layer: name for name, layer in self.named_modules()}
        kl: dict[str, LayerKL] = {}
        for layer, plan in gram.plans.items():
            kl.update(prefixed(names[layer], plan.kl))
        if self.head is None:
            return ExactObjective(self._regression(gram).log_marginal_likelihood, kl)
        with located("head"):
            top = self.head.plan(gram.cross)
            marginals = top.marginals(gram.cross, gram.left)
        expected = self.likelihood.expected_log_prob(marginals, self.targets).sum()
        return ExactObjective(expected - top.kl.sum(), kl)

    def fit(
        self,
        steps: int = 100,
        *,
        method: Method = "natural",
        learning_rate: float | None = None,
        tolerance: float = 1e-9,
    ) -> list[ExactObjective]:
        r"""Maximise the objective over all parameters of the machine that require gradients.

        ``"natural"`` takes Newton steps in the natural metric of each Gram matrix, damped so that
        the objective increases with each (:mod:`convdkm.exact.natural`). The posterior of a
        likelihood that is not Gaussian, and its noise, are moved along. Hyperparameters of kernels
        are not for these steps, and are refused: L-BFGS learns them.

        Where ν is small there is more than one local maximum. A fit that begins at the kernels,
        with :math:`G^\ell = K^\ell`, then lowers ν in stages down to its value. Steps of all
        stages increase the objective itself, too.

        Args:
            steps: most iterations to make.
            method: ``"natural"``, ``"lbfgs"`` with a line search, or ``"adam"``.
            learning_rate: 1 by default for L-BFGS (a first guess of each line search), 0.01 for
                Adam; natural steps have none.
            tolerance: natural steps end when one promises to increase the objective by less, and
                L-BFGS when an iteration changes it by less, in nats.

        Returns:
            The objective before the first iteration and after each, with the number of evaluations
            made.
        """
        self._check_fit(steps, method, learning_rate)
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        with torch.no_grad():
            history = [self.objective()]
            if method != "adam" and not torch.equal(history[0].total, self.objective().total):
                raise InvalidInputError(
                    f"{type(self.likelihood).__name__} draws random samples, so that the objective"
                    f" is another at every call and method={method!r} cannot compare two values;"
                    " use expectation='nodes', or method='adam'"
                )
        if not parameters:
            return history
        count, latest = 0, -math.inf

        def value(scale: float = 1.0) -> Tensor:
            nonlocal count, latest
            objective = self.objective()
            count, latest = count + 1, float(objective.total.detach())
            return objective.log_likelihood - scale * objective.regulariser

        if method == "natural":
            improved = lambda: latest > float(history[-1].total)  # noqa: E731
            iterations = self._natural(value, improved, history[0], tolerance)
        else:
            iterations = _of_torch(value, parameters, method, learning_rate)
        while len(history) <= steps:
            before = [parameter.detach().clone() for parameter in parameters]
            try:
                if next(iterations, self) is self:
                    break
                with torch.no_grad():
                    history.append(replace(self.objective(), evaluations=count))
                if not math.isfinite(history[-1].total):
                    raise NumericalError("the objective is no longer finite")
            except ConvDKMError:
                with torch.no_grad():
                    for parameter, old in zip(parameters, before, strict=True):
                        parameter.copy_(old)
                raise
            change = abs(float(history[-1].total - history[-2].total))
            if method == "lbfgs" and change <= tolerance:
                break
        iterations.close()
        self.zero_grad()
        return history

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Prediction:
        """Predictive distribution at new points, ``(N, N0)`` or ``(N, C, *space)``.

        Their Grams follow from those of the training points, layer by layer
        (:class:`convdkm.exact.full_rank.FullRankGram`).
        """
        self._check(inputs)
        _, trained = self._trained()
        row = self.num_points * math.prod(inputs.shape[2:]) ** 2
        parts = []
        for part in inputs.to(self.inputs).split(max(1, BLOCK_ENTRIES // row)):
            start = FullRankGram.of_images(part, self.inputs)
            gram = self._propagated(replace(start, plans=trained.plans))
            parts.append(self._predicted(trained, gram))
        return type(parts[0]).join(parts)

    def forward(self, inputs: Tensor) -> Prediction:
        return self.predict(inputs)

    # -- internals -----------------------------------------------------------------------------

    def _trained(self) -> tuple[SpatialGram, FullRankGram]:
        """The first Gram of the training data and the last, with the plans of all layers."""
        if not bool(self.initialised):
            raise NotInitialisedError(
                "this machine has no training data; call initialise(inputs, targets), or load a"
                " state_dict first"
            )
        first = FullRankGram.of_images(self.inputs)
        return first, self._propagated(first)

    def _propagated(self, gram: SpatialGram) -> FullRankGram:
        with in_mode(self.body, training=False), located("body"):
            found = propagate(self.body, gram)
        assert isinstance(found, FullRankGram)
        return found

    def _regression(self, gram: SpatialGram) -> GPRegression:
        noise = self.likelihood.noise
        assert isinstance(noise, Tensor)
        return GPRegression(gram.cross, self.targets, noise)

    def _predicted(self, trained: SpatialGram, gram: SpatialGram) -> Prediction:
        if self.head is None:
            found = self._regression(trained).predict(gram.cross, gram.left)
            return self.likelihood.predict(Marginals(found.mean, found.variance))
        with located("head"):
            marginals = self.head.plan(trained.cross).marginals(gram.cross, gram.left)
        return self.likelihood.predict(marginals)

    def _natural(
        self,
        value: Callable[..., Tensor],
        improved: Callable[[], bool],
        start: ExactObjective,
        tolerance: float,
    ) -> Generator[None]:
        """Natural steps, with ν lowered in stages if it is small and G is K."""
        scale, weights = 1.0, [term.nu for term in start.kl.values() if term.nu]
        if weights and all(float(term.value) < 1e-6 for term in start.kl.values()):
            scale = max(1.0, self.likelihood.num_outputs / 2 / min(weights))
        while scale > 1:
            stage, enough = functools.partial(value, scale), scale * min(weights) / 30
            yield from newton_steps(stage, self._coordinates(scale), enough, improved)
            scale = max(1.0, scale / _LOWERING)
        yield from newton_steps(value, self._coordinates(1.0), tolerance, improved)

    def _check_fit(self, steps: int, method: Method, learning_rate: float | None) -> None:
        """Raise unless a fit can be made so; natural steps are not made for all parameters."""
        check_choice("method", method, Method)
        if steps < 0:
            raise InvalidInputError(f"the number of steps must not be negative, got {steps}")
        if method != "natural":
            return
        if learning_rate is not None:
            raise InvalidInputError(
                "natural steps find their own length; leave out learning_rate, or choose another"
                f" method of {', '.join(get_args(Method))}"
            )
        natural = (GramLayer, GPHead, Likelihood)
        inside = [module for module in self.modules() if isinstance(module, natural)]
        known = {parameter for module in inside for parameter in module.parameters()}
        names = [
            name
            for name, parameter in self.named_parameters()
            if parameter.requires_grad and parameter not in known
        ]
        if names:
            raise InvalidInputError(
                f"natural steps are for Gram matrices, posteriors and noise, but {', '.join(names)}"
                " is to be learned, too; use fit(method='lbfgs') with Grams of"
                " parameterisation='whitened', and requires_grad_(False) for natural steps after it"
            )

    def _coordinates(self, scale: float) -> list[Coordinates]:
        """Coordinates of all that is learned, with the curvature that its terms have."""
        outputs = float(self.likelihood.num_outputs)
        grams = [layer for layer in self.modules() if isinstance(layer, GramLayer)]
        grams = [layer for layer in grams if not layer.is_nngp]
        above = [*(scale * layer.nu for layer in grams[1:]), outputs]
        factors = {
            layer.factor: max(scale * layer.nu + weight, 1e-3 * outputs)
            for layer, weight in zip(grams, above, strict=False)
        }
        others: dict[Tensor, float] = {}
        if self.head is not None:
            factors[self.head.factor] = outputs
            others[self.head.mean] = 1.0
        return [
            FactorCoordinates(parameter, factors[parameter])
            if parameter in factors
            else Coordinates(parameter, others.get(parameter, max(1.0, self.num_points * outputs)))
            for parameter in self.parameters()
            if parameter.requires_grad
        ]

    def _check(self, inputs: Tensor) -> None:
        if not isinstance(inputs, Tensor) or not inputs.dtype.is_floating_point:
            kind = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
            raise InvalidInputError(f"inputs must be a floating-point torch.Tensor, got {kind}")
        if inputs.shape[1:] != self.inputs.shape[1:] or not len(inputs):
            expected = ", ".join(map(str, self.inputs.shape[1:]))
            raise InvalidInputError(
                f"inputs must have shape (N, {expected}), got {tuple(inputs.shape)}"
            )
        bad = (~torch.isfinite(inputs)).flatten(1).any(1).nonzero().flatten().tolist()
        if bad:
            raise InvalidInputError(f"inputs are NaN or infinite in rows {bad[:5]}")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        saved = state_dict.get(f"{prefix}targets")
        if saved is not None:  # whose shape and type only the data tell
            self.targets = torch.zeros_like(saved, device=self.inputs.device)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return super()._apply(keep_dtype(fn), recurse)

    def extra_repr(self) -> str:
        return f"shape={tuple(self.inputs.shape)}"


def _sized(body: Layer, shape: tuple[int, ...]) -> Layer:
    """A body with Gram layers in the place of every :class:`LearnedGram`.

    Raises:
        InvalidInputError: training would need more memory than there is.
    """
    images = torch.empty(shape, dtype=INDUCING_DTYPE, device="meta")
    with in_mode(body, training=False), located("body"), torch.no_grad():
        found = propagate(body, GramSizes.of_images(images))
    if found.space:
        raise GramError(
            f"the images still have places {found.space} after the last layer of the body; end it"
            " with GlobalAveragePool() or Flatten()"
        )
    assert isinstance(found, GramSizes)
    learned = [size for layer, size in found.sizes.items() if not layer.is_nngp]
    entries = sum(found.entries) + MATRICES_OF_A_LAYER * sum(size**2 for size in learned)
    there, needed = available_memory(), entries * images.element_size()
    if there is not None and needed > there:
        raise InvalidInputError(
            f"training this machine takes about {needed / 2**30:,.1f} GiB, for matrices of up to"
            f" {max([shape[0], *found.sizes.values()]):,} rows (training points times places), but"
            f" {there / 2**30:,.1f} GiB are available; use fewer or smaller images, a larger"
            " stride, or inducing points (DeepKernelMachine)"
        )
    modules = dict(body.named_modules())
    for name, layer in modules.items():
        if isinstance(layer, LearnedGram):
            parent, _, child = name.rpartition(".")
            if not name:
                return layer.of_size(found.sizes[layer])
            modules[parent]._modules[child] = layer.of_size(found.sizes[layer])
    return body


def _of_torch(
    value: Callable[[], Tensor],
    parameters: list[nn.Parameter],
    method: Method,
    learning_rate: float | None,
) -> Generator[None]:
    """Iterations of one of PyTorch's optimisers, without end."""
    optimiser: torch.optim.Optimizer
    if method == "lbfgs":
        optimiser = torch.optim.LBFGS(
            parameters,
            lr=1.0 if learning_rate is None else learning_rate,
            max_iter=1,
            max_eval=25,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            history_size=50,
            line_search_fn="strong_wolfe",
        )
    else:
        rate = 0.01 if learning_rate is None else learning_rate
        optimiser = torch.optim.Adam(parameters, lr=rate)

    def loss() -> float:
        optimiser.zero_grad()
        total = -value()
        total.backward()
        return float(total.detach())

    while True:
        optimiser.step(loss)
        yield

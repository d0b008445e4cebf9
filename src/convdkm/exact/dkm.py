r"""The full-rank deep kernel machine: a learned P×P Gram matrix for every layer (Eq. 5)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from convdkm.checks import check_choice, one_per_layer
from convdkm.choices import Parameterisation
from convdkm.errors import (
    ConvDKMError,
    InvalidInputError,
    NotInitialisedError,
    NumericalError,
    located,
)
from convdkm.exact.regression import GPRegression
from convdkm.gram import INDUCING_DTYPE, Gram
from convdkm.kernels import ArcCosine, Kernel
from convdkm.layers import GramLayer, Layer, LayerKL, Plan, Sequential
from convdkm.layers.base import keep_dtype
from convdkm.layers.compose import prefixed
from convdkm.likelihoods import Gaussian
from convdkm.prediction import RealPrediction

Method = Literal["lbfgs", "adam"]


@dataclass(frozen=True, eq=False)
class ExactObjective:
    r"""The objective of Eq. 5 and its parts, summed over all data; to be maximised.

    .. math:: \mathcal L = \log P(Y|G^L)
              - \sum_\ell \nu_\ell D_{KL}(N(0, G^\ell) \| N(0, K(G^{\ell-1})))

    Attributes:
        log_likelihood: :math:`\log P(Y|G^L)`, in nats.
        kl: each Gram layer's divergence and weight, by the layer's name.
    """

    log_likelihood: Tensor
    kl: dict[str, LayerKL]

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
        return ExactObjective(self.log_likelihood.detach(), kl)

    def __repr__(self) -> str:
        value = self.detach()
        layers = ", ".join(f"{name}: {float(term.value):.6g}" for name, term in value.kl.items())
        return (
            f"ExactObjective(total={float(value.total):.6g},"
            f" log_likelihood={float(value.log_likelihood):.6g}, kl={{{layers}}})"
        )


class FullRankDKM(nn.Module):
    r"""Regression by a deep kernel machine with a learned P×P Gram matrix for every layer.

    From data X and Y it takes :math:`G^0 = \tfrac1{N_0} X X^T` (Eq. 4) and maximises Eq. 5 over
    :math:`G^1, \dots, G^L`. It is the sparse machine :func:`fully_connected` whose inducing points
    are the training points, with the top layer integrated out in closed form; its ``body`` has the
    same layers and names, so that their parameters can be exchanged. The cost is cubic in P.

    New points are predicted layer by layer from the training points, as :class:`GramLayer` does
    for inducing points, followed by :class:`GPRegression`.

    >>> import torch
    >>> from convdkm.exact import FullRankDKM
    >>> x = torch.linspace(-1, 1, 8)[:, None] + torch.tensor([0.0, 1.0])
    >>> machine = FullRankDKM.from_data(x, x.sin().sum(1), depth=2, nu=1.0)
    >>> history = machine.fit(steps=20)
    >>> bool(history[-1].total > history[0].total)
    True
    >>> machine.predict(x).mean.shape
    torch.Size([8, 1])

    Args:
        num_points: P, the number of training points.
        in_features: :math:`N_0`, the length of the vectors.
        num_outputs: number of regression targets.
        depth: L, the number of learned Gram matrices.
        kernel: copied for every layer; ``ArcCosine()`` by default.
        nu: :math:`\nu_\ell`, one number or one for each layer, from 0 to infinity. Where it is
            infinite the layer has no parameters and G = K; with all of them infinite the machine
            is Gaussian process regression with the recursive kernel of Eq. 4.
        noise: :math:`\sigma^2`, the variance of the noise, to start with.
        learn_noise: learn it. With few outputs and a small ν the Gram matrices can explain every
            target, and the noise that is learned then tends to zero.
        parameterisation, initial_scale: see :class:`GramLayer`.

    Everything is float64. The training data are buffers, and part of the ``state_dict``.
    """

    inputs: Tensor
    targets: Tensor
    initialised: Tensor

    def __init__(
        self,
        num_points: int,
        in_features: int,
        num_outputs: int = 1,
        *,
        depth: int = 2,
        kernel: Kernel | None = None,
        nu: float | Sequence[float] = 1.0,
        noise: float = 0.1,
        learn_noise: bool = False,
        parameterisation: Parameterisation = "whitened",
        initial_scale: float = 1.0,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("num_points", num_points, 1),
            ("in_features", in_features, 1),
            ("num_outputs", num_outputs, 1),
            ("depth", depth, 0),
        ):
            if not isinstance(value, int) or value < least:
                raise InvalidInputError(
                    f"{name} must be an integer of at least {least}, got {value!r}"
                )
        kernel = ArcCosine() if kernel is None else kernel
        body: dict[str, Layer] = {}
        for index, weight in enumerate(one_per_layer("nu", nu, depth), 1):
            gram = GramLayer(
                num_points,
                weight,
                parameterisation=parameterisation,
                initial_scale=initial_scale,
            )
            body[f"layer{index}"] = Sequential({"kernel": copy.deepcopy(kernel), "gram": gram})
        body["kernel"] = copy.deepcopy(kernel)
        self.body = Sequential(body)
        self.likelihood = Gaussian(num_outputs, noise=noise, learn_noise=learn_noise)
        self.register_buffer("inputs", torch.zeros(num_points, in_features, dtype=INDUCING_DTYPE))
        self.register_buffer("targets", torch.zeros(num_points, num_outputs, dtype=INDUCING_DTYPE))
        self.register_buffer("initialised", torch.tensor(False))

    @classmethod
    def from_data(cls, inputs: Tensor, targets: Tensor, **options: Any) -> FullRankDKM:
        """A machine of the right size for these data, with them.

        Args:
            inputs: X, ``(P, N0)``.
            targets: Y, ``(P, outputs)``, or ``(P,)`` for one output.
            options: as in :class:`FullRankDKM`.
        """
        for name, value, axes in (("inputs", inputs, (2,)), ("targets", targets, (1, 2))):
            if not isinstance(value, Tensor) or value.ndim not in axes:
                shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise InvalidInputError(f"{name} must be a matrix, one row a point; got {shape}")
        outputs = 1 if targets.ndim == 1 else targets.shape[1]
        machine = cls(inputs.shape[0], inputs.shape[1], outputs, **options)
        return machine.to(inputs.device).initialise(inputs, targets)

    @property
    def num_points(self) -> int:
        """P, the number of training points."""
        return self.inputs.shape[0]

    @torch.no_grad()
    def initialise(self, inputs: Tensor, targets: Tensor) -> FullRankDKM:
        """Set the training data, and every Gram layer to where it starts; return the machine."""
        self._check(inputs)
        if len(inputs) != self.num_points:
            raise InvalidInputError(
                f"this machine was made for {self.num_points} points, got {len(inputs)}"
            )
        targets = self.likelihood.check_targets(targets, len(inputs))
        self.inputs.copy_(inputs)
        self.targets.copy_(targets)
        self.initialised.fill_(True)
        with located("body"):
            self.body.initialise(self._first_gram(self.inputs))
        return self

    # -- the machine ---------------------------------------------------------------------------

    def grams(self) -> list[Tensor]:
        r""":math:`G^0, \dots, G^L`, each ``(P, P)``: the representations that were learned."""
        self._require_ready()
        grams = [self._first_gram(self.inputs).ii]
        for name, layer in self.body.named_layers()[:-1]:
            with located(f"body.{name}"):
                grams.append(layer.plan(grams[-1]).ii)
        return grams

    def objective(self) -> ExactObjective:
        """The objective on the training data, to be maximised."""
        plan = self._plan()
        regression = self._regression(plan)
        return ExactObjective(regression.log_marginal_likelihood, prefixed("body", plan.kl))

    def fit(
        self,
        steps: int = 100,
        *,
        method: Method = "lbfgs",
        learning_rate: float | None = None,
        tolerance: float = 1e-9,
    ) -> list[ExactObjective]:
        """Maximise the objective over all parameters of the machine that require gradients.

        Args:
            steps: most iterations to make.
            method: ``"lbfgs"`` with a line search, or ``"adam"``.
            learning_rate: 1 by default for L-BFGS (a first guess of each line search), 0.01 for
                Adam.
            tolerance: L-BFGS stops when an iteration changes the objective by less, in nats.

        Returns:
            The objective before the first iteration and after each.
        """
        check_choice("method", method, Method)
        if steps < 0:
            raise InvalidInputError(f"the number of steps must not be negative, got {steps}")
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        with torch.no_grad():
            history = [self.objective()]
        if not parameters:
            return history
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
            value = -self.objective().total
            value.backward()
            return float(value.detach())

        for _ in range(steps):
            before = [parameter.detach().clone() for parameter in parameters]
            try:
                optimiser.step(loss)
                with torch.no_grad():
                    history.append(self.objective())
                if not math.isfinite(history[-1].total):
                    raise NumericalError("the objective is no longer finite")
            except ConvDKMError:
                with torch.no_grad():
                    for parameter, value in zip(parameters, before, strict=True):
                        parameter.copy_(value)
                raise
            change = abs(float(history[-1].total - history[-2].total))
            if method == "lbfgs" and change <= tolerance:
                break
        return history

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> RealPrediction:
        r"""Predictive distribution at new points, ``(N, N0)``.

        In every layer :math:`G_{it} = G_{ii} K_{ii}^{-1} K_{it}` and
        :math:`g_{tt} = k_{tt} - K_{ti} K_{ii}^{-1} (K_{ii} - G_{ii}) K_{ii}^{-1} K_{it}`, the
        training points taking the place of inducing points.
        """
        self._check(inputs)
        plan = self._plan()
        first = self._first_gram(inputs.to(self.inputs))
        with located("body"):
            it, tt = plan.data(first.it, first.tt)
        return self._regression(plan).predict(it, tt)

    def forward(self, inputs: Tensor) -> RealPrediction:
        return self.predict(inputs)

    # -- internals -----------------------------------------------------------------------------

    def _first_gram(self, inputs: Tensor) -> Gram:
        return Gram.from_features(self.inputs, inputs)

    def _plan(self) -> Plan:
        self._require_ready()
        with located("body"):
            return self.body.plan(self._first_gram(self.inputs[:0]).ii)

    def _regression(self, plan: Plan) -> GPRegression:
        return GPRegression(plan.ii, self.targets, self.likelihood.noise)

    def _require_ready(self) -> None:
        if not bool(self.initialised):
            raise NotInitialisedError(
                "this machine has no training data; call initialise(inputs, targets), or load a"
                " state_dict first"
            )

    def _check(self, inputs: Tensor) -> None:
        features = self.inputs.shape[1]
        if not isinstance(inputs, Tensor) or not inputs.dtype.is_floating_point:
            kind = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
            raise InvalidInputError(f"inputs must be a floating-point torch.Tensor, got {kind}")
        if inputs.ndim != 2 or inputs.shape[1] != features or not len(inputs):
            raise InvalidInputError(
                f"inputs must have shape (N, {features}), got {tuple(inputs.shape)}"
            )
        bad = (~torch.isfinite(inputs)).any(1).nonzero().flatten().tolist()
        if bad:
            raise InvalidInputError(f"inputs are NaN or infinite in rows {bad[:5]}")

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return super()._apply(keep_dtype(fn), recurse)

    def extra_repr(self) -> str:
        return f"num_points={self.num_points}, in_features={self.inputs.shape[1]}"

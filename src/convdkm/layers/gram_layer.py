r"""The learned Gram matrix of a layer: where a deep kernel machine differs from an NNGP."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from convdkm.checks import check_choice, check_positive, check_positive_number
from convdkm.choices import KLForm, Parameterisation
from convdkm.errors import InvalidInputError, NotInitialisedError
from convdkm.gram import INDUCING_DTYPE, Gram
from convdkm.layers.base import Layer, require_inducing
from convdkm.numerics import cholesky, standard_normal
from convdkm.ops.base import IdentityPlan, Plan
from convdkm.ops.gram import GramPlan
from convdkm.ops.inducing import learned_gram

LARGEST_TURNED = 128
"""Inducing points up to which Q is turned; eigenvectors of larger matrices take long."""


class GramLayer(Layer):
    r"""Learns :math:`G_{ii}`, predicts the rest of the Gram from it, and pays a KL for the freedom.

    With :math:`K` the incoming kernel,

    .. math::
        G_{it} &= G_{ii} K_{ii}^{-1} K_{it}, \\
        g_{tt} &= k_{tt} - K_{ti} K_{ii}^{-1} K_{it}
                  + K_{ti} K_{ii}^{-1} G_{ii} K_{ii}^{-1} K_{it}, \\
        \text{and}\quad & \nu\,D_{KL}(N(0, G_{ii}) \,\|\, N(0, K_{ii})) \quad\text{(Eq. 7)}.

    Args:
        num_inducing: :math:`P_i`.
        nu: weight ν of the KL in the objective, from 0 (no regularisation) to infinity, where
            G = K: the layer has no parameters and the machine is an NNGP.
        parameterisation: ``"direct"`` (the paper): a lower-triangular factor of G_ii itself, set to
            that of K_ii by :meth:`initialise`. ``"whitened"``: G_ii = L R Rᵀ Lᵀ where K_ii = L Lᵀ,
            so that the layer follows changes of the layers below; needs no data to start.
        initial_scale: α², G_ii starts at α² K_ii; 1 (the NNGP) in the paper.
        learn_scale: learn one more number, the logarithm of a factor of G_ii (published runs).
        divided: learn R with G_ii = R Rᵀ / P_i: the same machine, but a step of Adam moves it by
            less.
        full: learn all of R, a square matrix (published runs), and not its lower triangle alone:
            the same machine, but a step of Adam moves G_ii by more.
        samples: γ as a share of P_i, rounded up; 0 for no sampling. In training, the sample
            :math:`\tilde G_{ii} = \tfrac1\gamma F\Xi\Xi^TF^T + \lambda I` takes the place of
            :math:`G_{ii} = FF^T` in the outgoing Gram, with a standard normal Ξ ``(P_i, γ)`` that
            :meth:`resample` draws (stochastic kernel regularisation; Milsom et al., 2024). Its mean
            :math:`G_{ii} + \lambda I` is used in evaluation. The KL is always that of G_ii.
        noise: λ. At ν = ∞, where nothing is learned, there is neither sampling nor noise.
        kl: the KL itself (``"exact"``), or its expansion to second order about G = K
            (``"taylor"``), :math:`\tfrac14\mathrm{tr}\,(G_{ii}^{-1}K_{ii} - I)^2`.

    Attributes:
        sample: Ξ, if there is one.
        compiled: see :meth:`convdkm.DeepKernelMachine.compile_elementwise`.
    """

    factor: Tensor
    log_scale: Tensor | None
    initialised: Tensor
    sample: Tensor | None

    def __init__(
        self,
        num_inducing: int,
        nu: float = 1.0,
        *,
        parameterisation: Parameterisation = "direct",
        initial_scale: float = 1.0,
        learn_scale: bool = False,
        divided: bool = False,
        full: bool = False,
        samples: float = 0.0,
        noise: float = 0.0,
        kl: KLForm = "exact",
    ) -> None:
        super().__init__()
        check_positive(num_inducing=num_inducing)
        for name, value in (("samples", samples), ("noise", noise)):
            if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise InvalidInputError(f"{name} must be 0 or a positive number, got {value!r}")
        check_choice("kl", kl, KLForm)
        check_positive_number(initial_scale=initial_scale)
        if not isinstance(nu, (int, float)) or not nu >= 0:
            raise InvalidInputError(f"nu must lie between 0 and infinity, got {nu!r}")
        check_choice("parameterisation", parameterisation, Parameterisation)
        self.num_inducing, self.nu = num_inducing, float(nu)
        self.parameterisation, self.initial_scale = parameterisation, float(initial_scale)
        self.divisor, self.full = float(num_inducing) ** 0.5 if divided else 1.0, full
        self.noise, self.kl = float(noise), kl
        self.compiled = False
        self._ready = True
        self.log_scale = None
        self.register_buffer("sample", None, persistent=False)
        if self.is_nngp:
            return
        if samples:
            count = math.ceil(samples * num_inducing)
            self.sample = torch.empty(num_inducing, count, dtype=INDUCING_DTYPE)
            self.resample()
        identity = torch.eye(num_inducing, dtype=INDUCING_DTYPE)
        self.factor = nn.Parameter(self.divisor * initial_scale**0.5 * identity)
        if learn_scale:
            self.log_scale = nn.Parameter(torch.zeros((), dtype=INDUCING_DTYPE))
        self._ready = parameterisation == "whitened"
        self.register_buffer("initialised", torch.tensor(self._ready))

    @property
    def is_nngp(self) -> bool:
        """ν is infinite: G = K, with nothing to learn."""
        return math.isinf(self.nu)

    @torch.no_grad()
    def resample(self, generator: torch.Generator | None = None) -> None:
        """Draw Ξ anew."""
        if self.sample is not None:
            self.sample.copy_(standard_normal(self.sample.shape, generator))

    def plan(self, ii: Tensor) -> Plan:
        return self._plan(ii, self.sample if self.training else None)

    def _plan(self, ii: Tensor, sample: Tensor | None) -> Plan:
        require_inducing(ii, self.num_inducing)
        if self.is_nngp:
            return IdentityPlan(ii)
        if not self._ready:
            raise NotInitialisedError(
                "this Gram layer starts at the kernel of the layer below, which it has not seen;"
                " call initialise(images, labels) on the model, initialise(gram) on the layer, or"
                " load a state_dict first"
            )
        turned = ii.device.type == "cpu" and self.num_inducing <= LARGEST_TURNED
        learned = learned_gram(
            ii,
            self.factor,
            self.log_scale,
            divisor=self.divisor,
            whitened=self.parameterisation == "whitened",
            turned=turned,
            full=self.full,
            sample=sample,
            noise=self.noise,
            taylor=self.kl == "taylor",
        )
        triangular = sample is None and not (self.noise or self.full)
        return GramPlan(
            learned, self.nu, orthogonal=turned, triangular=triangular, compiled=self.compiled
        )

    @torch.no_grad()
    def initialise(self, gram: Gram, generator: torch.Generator | None = None) -> Gram:
        require_inducing(gram.ii, self.num_inducing)
        if not self.is_nngp:
            start = torch.eye(self.num_inducing, dtype=INDUCING_DTYPE, device=gram.device)
            if self.parameterisation == "direct":
                start = cholesky(gram.ii, "the kernel matrix K_ii")
            self.factor.copy_(self.divisor * self.initial_scale**0.5 * start)
            if self.log_scale is not None:
                self.log_scale.zero_()
            self._ready = True
            self.initialised.fill_(True)
        return self._plan(gram.ii, None)(gram)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        if not self.is_nngp and not self.initialised.is_meta:
            self._ready = bool(self.initialised)

    def extra_repr(self) -> str:
        shown = f"{self.num_inducing}, nu={self.nu:g}, parameterisation={self.parameterisation!r}"
        count = 0 if self.sample is None else self.sample.shape[1]
        more = {"samples": count, "noise": self.noise, "kl": self.kl * (self.kl != "exact")}
        return ", ".join([shown, *(f"{name}={value}" for name, value in more.items() if value)])

"""Layers made of layers: one after the other, and side by side."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from convdkm.errors import GramError, InvalidInputError, located
from convdkm.gram import INDUCING_DTYPE, Gram
from convdkm.layers.base import Layer
from convdkm.ops.base import IdentityPlan, LayerKL, Plan
from convdkm.ops.chain import Chain, SkipPlan, require_same_space


def prefixed(name: str, kl: dict[str, LayerKL]) -> dict[str, LayerKL]:
    """KL terms with ``name`` put before theirs; an empty name is the layer itself."""
    return {f"{name}.{key}" if key else name: value for key, value in kl.items()}


class Sequential(Layer):
    """Layers applied one after the other.

    >>> import convdkm as dkm
    >>> body = dkm.Sequential(dkm.ArcCosine(), dkm.Conv(16, 32, 3, stride=2), dkm.GramLayer(32))
    >>> len(body)
    3

    Args:
        layers: the layers in order, or one dictionary that names them.
    """

    def __init__(self, *layers: Layer | Mapping[str, Layer]) -> None:
        super().__init__()
        named: Mapping[str, object] = {str(index): layer for index, layer in enumerate(layers)}
        if len(layers) == 1 and isinstance(layers[0], Mapping):
            named = layers[0]
        for name, layer in named.items():
            if not isinstance(layer, Layer):
                raise InvalidInputError(
                    f"Sequential takes layers (Gram → Gram); entry '{name}' is a"
                    f" {type(layer).__name__}"
                )
            try:
                self.add_module(name, layer)
            except KeyError as error:
                raise InvalidInputError(f"a layer cannot be called {name!r}: {error}") from error

    def named_layers(self) -> list[tuple[str, Layer]]:
        """The layers in order, with their names; one that stands twice is there twice."""
        return [(name, layer) for name, layer in self._modules.items() if isinstance(layer, Layer)]

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: int) -> Layer:
        return self.named_layers()[index][1]

    def plan(self, ii: Tensor) -> Chain:
        steps: list[tuple[str, Plan]] = []
        kl: dict[str, LayerKL] = {}
        for name, layer in self.named_layers():
            with located(name):
                plan = layer.plan(ii)
            steps.append((name, plan))
            kl.update(prefixed(name, plan.kl))
            ii = plan.ii
        return Chain(steps, ii, kl)

    def initialise(self, gram: Gram, generator: torch.Generator | None = None) -> Gram:
        for name, layer in self.named_layers():
            with located(name):
                gram = layer.initialise(gram, generator)
        return gram


def _require_same_inducing(given: Tensor, body: Tensor, short: Tensor) -> None:
    if body.shape != short.shape:
        raise GramError(
            f"the block maps {given.shape[0]} inducing points to {body.shape[0]}, its shortcut to"
            f" {short.shape[0]}; give Skip a shortcut such as"
            f" Conv({given.shape[0]}, {body.shape[0]}, 1)"
        )


class Skip(Layer):
    r"""Skip connection: convex combination :math:`(1-w)\,\mathrm{short}(G) + w\,\mathrm{body}(G)`.

    It is the Gram of the concatenated features :math:`[\sqrt{1-w}\,F_{short}, \sqrt{w}\,F_{body}]`.

    Args:
        body: the block that is skipped over.
        shortcut: the way round it; the identity by default. Where the block changes the number of
            inducing points or has a stride: ``Conv(P, P', 1, stride=...)`` and a ``Norm``, usually.
        weight: w, the share of the body, between 0 and 1.
        learn: learn w (as a logit); fixed otherwise.
    """

    logit: Tensor
    fixed_weight: Tensor

    def __init__(
        self,
        body: Layer,
        shortcut: Layer | None = None,
        *,
        weight: float = 0.5,
        learn: bool = False,
    ) -> None:
        super().__init__()
        for name, layer in (("body", body), ("shortcut", shortcut)):
            if not isinstance(layer, Layer) and not (name == "shortcut" and layer is None):
                raise InvalidInputError(
                    f"the {name} of a Skip is a layer (Gram → Gram), got a {type(layer).__name__}"
                )
        if not 0.0 <= weight <= 1.0 or (learn and weight in (0.0, 1.0)):
            allowed = "strictly between 0 and 1 to be learned" if learn else "in [0, 1]"
            raise InvalidInputError(f"the weight of a skip connection lies {allowed}, got {weight}")
        self.body = body
        self.shortcut = shortcut
        self.learn = learn
        value = torch.tensor(float(weight), dtype=INDUCING_DTYPE)
        if learn:
            self.logit = nn.Parameter(torch.logit(value))
        else:
            self.register_buffer("fixed_weight", value)

    @property
    def weight(self) -> Tensor:
        """w, the share of the body."""
        return torch.sigmoid(self.logit) if self.learn else self.fixed_weight

    def plan(self, ii: Tensor) -> Plan:
        with located("body"):
            body = self.body.plan(ii)
        with located("shortcut"):
            shortcut = self.shortcut.plan(ii) if self.shortcut is not None else IdentityPlan(ii)
            _require_same_inducing(ii, body.ii, shortcut.ii)
        kl = {**prefixed("body", body.kl), **prefixed("shortcut", shortcut.kl)}
        return SkipPlan(body, shortcut, self.weight, kl)

    def initialise(self, gram: Gram, generator: torch.Generator | None = None) -> Gram:
        with located("body"):
            body = self.body.initialise(gram, generator)
        with located("shortcut"):
            short = gram if self.shortcut is None else self.shortcut.initialise(gram, generator)
            _require_same_inducing(gram.ii, body.ii, short.ii)
            require_same_space(gram.it, body.it, short.it)
        return short.combine(body, self.weight)

    def extra_repr(self) -> str:
        return f"weight={float(self.weight.detach()):.3g}, learn={self.learn}"

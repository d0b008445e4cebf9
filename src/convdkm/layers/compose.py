"""Layers made of layers: one after the other, and side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

import torch
from torch import Tensor, nn

from convdkm.errors import GramError, InvalidInputError, located
from convdkm.gram import INDUCING_DTYPE, Gram
from convdkm.layers.base import IdentityPlan, Layer, LayerKL, Plan
from convdkm.layers.fork import every, forked


class Chain(Plan):
    """Plans applied one after the other, neighbours merged where one can absorb the other.

    Args:
        steps: the plans, each with the name of its layer.
        ii: the outgoing inducing block.
        kl: the KL terms of all plans.
    """

    def __init__(
        self, steps: Sequence[tuple[str, Plan]], ii: Tensor, kl: dict[str, LayerKL]
    ) -> None:
        super().__init__(ii, kl)
        self.steps: list[tuple[str, Plan]] = []
        for name, plan in steps:
            self._append(name, plan)

    def _append(self, name: str, plan: Plan) -> None:
        if isinstance(plan, IdentityPlan):
            return
        if isinstance(plan, Chain):
            for inner, step in plan.steps:
                self._append(f"{name}.{inner}", step)
            return
        split = plan.split() if self.steps else None
        if split is not None:
            matrix, rest = split
            before, last = self.steps[-1]
            absorbed = last.premultiplied(matrix)
            if absorbed is not None:
                self.steps[-1] = (before, absorbed)
                plan = rest
        joined = self.steps[-1][1].joined(plan) if self.steps else None
        if joined is not None:
            self.steps[-1] = (name, joined)
        else:
            self.steps.append((name, plan))

    def data(self, it: Tensor, tt: Tensor) -> tuple[Tensor, Tensor]:
        for name, plan in self.steps:
            with located(name):
                it, tt = plan.data(it, tt)
        return it, tt

    def blocks(self) -> list[Chain]:
        """The chain cut before and after every skip connection: parts worth recomputing."""
        parts: list[list[tuple[str, Plan]]] = [[]]
        for name, plan in self.steps:
            alone = isinstance(plan, SkipPlan)
            if alone or (parts[-1] and isinstance(parts[-1][-1][1], SkipPlan)):
                parts.append([])
            parts[-1].append((name, plan))
        return [Chain(part, part[-1][1].ii, {}) for part in parts if part]

    def premultiplied(self, matrix: Tensor) -> Plan | None:
        if not self.steps:
            return None
        name, last = self.steps[-1]
        absorbed = last.premultiplied(matrix)
        return Chain([*self.steps[:-1], (name, absorbed)], self.ii, self.kl) if absorbed else None

    def split(self) -> tuple[Tensor, Plan] | None:
        if not self.steps:
            return None
        name, first = self.steps[0]
        split = first.split()
        if split is None:
            return None
        matrix, rest = split
        return matrix, Chain([(name, rest), *self.steps[1:]], self.ii, self.kl)

    def thinned(self) -> tuple[Sequence[int], Plan] | None:
        if not self.steps:
            return None
        name, first = self.steps[0]
        thinned = first.thinned()
        if thinned is None:
            return None
        strides, rest = thinned
        return strides, Chain([(name, rest), *self.steps[1:]], self.ii, self.kl)


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

    @overload
    def __init__(self, *layers: Layer) -> None: ...
    @overload
    def __init__(self, layers: Mapping[str, Layer], /) -> None: ...
    def __init__(self, *layers: Layer | Mapping[str, Layer]) -> None:
        super().__init__()
        named: dict[str, Layer]
        if len(layers) == 1 and isinstance(layers[0], Mapping):
            named = dict(layers[0])
        else:
            named = {str(index): layer for index, layer in enumerate(layers)}  # type: ignore[misc]
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


def require_same_space(given: Tensor, body: Tensor, short: Tensor) -> None:
    """Raise unless the two sides of a skip connection have the same places."""
    if body.shape != short.shape:
        raise GramError(
            f"the block maps places {tuple(given.shape[2:])} to {tuple(body.shape[2:])}, its"
            f" shortcut to {tuple(short.shape[2:])}; a strided block needs a shortcut with the"
            " same stride, such as Conv(P, P', 1, stride=...)"
        )


class SkipPlan(Plan):
    """``(1 − w)·short + w·body``, where a side that can take its weight into its own matrices does.

    Attributes:
        body, shortcut: the two sides, as they were planned.
        weight: w.
    """

    def __init__(self, body: Plan, shortcut: Plan, weight: Tensor, kl: dict[str, LayerKL]) -> None:
        super().__init__((1 - weight) * shortcut.ii + weight * body.ii, kl)
        self.body, self.shortcut, self.weight = body, shortcut, weight
        self._body = body.premultiplied(weight)
        self._shortcut = shortcut.premultiplied(1 - weight)

    def data(self, it: Tensor, tt: Tensor) -> tuple[Tensor, Tensor]:
        weight, given = self.weight.to(it.dtype), it
        short, short_it, short_tt = self._shortcut or self.shortcut, it, tt
        thinned = short.thinned()
        if thinned is not None and it.ndim == 2 + len(thinned[0]):
            strides, short = thinned
            it, short_it = forked(it, strides)
            short_tt = every(tt, strides)
        with located("body"):
            body_it, body_tt = (self._body or self.body).data(it, tt)
        with located("shortcut"):
            short_it, short_tt = short.data(short_it, short_tt)
            require_same_space(given, body_it, short_it)
        variance = torch.lerp(short_tt, body_tt, weight)
        if self._body is None and self._shortcut is None:
            return torch.lerp(short_it, body_it, weight), variance
        if self._body is None:
            return torch.addcmul(short_it, body_it, weight), variance
        if self._shortcut is None:
            return torch.addcmul(body_it, short_it, 1 - weight), variance
        return body_it + short_it, variance


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

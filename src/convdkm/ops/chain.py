"""Operations made of operations: one after the other, and side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from convdkm.errors import GramError, located
from convdkm.ops import fuse
from convdkm.ops.base import Blocks, IdentityPlan, LayerKL, Operation, Plan, constant
from convdkm.ops.fuse import Step
from convdkm.ops.window import every
from convdkm.runtime.maps import channels_last

_APART: ContextVar[bool] = ContextVar("apart", default=False)


@contextmanager
def apart() -> Iterator[None]:
    """Inside the block operations are not fused: each layer has an operation of its own."""
    token = _APART.set(True)
    try:
        yield
    finally:
        _APART.reset(token)


class Chain(Plan):
    """Operations one after the other, neighbours joined where that saves work.

    Args:
        steps: the operations, each with the name of its layer, or those of its layers.
        ii: the outgoing inducing block.
        kl: the KL terms of all operations.
    """

    names: tuple[tuple[str, ...], ...]
    parts: Sequence[Any]

    def __init__(
        self,
        steps: Sequence[tuple[str | tuple[str, ...], Plan]],
        ii: Tensor,
        kl: dict[str, LayerKL],
    ) -> None:
        super().__init__(ii, kl)
        given = [
            ((names,) if isinstance(names, str) else names, operation) for names, operation in steps
        ]
        self._set(given if _APART.get() else fuse.fused(_flat(given)))

    def _set(self, steps: list[Step]) -> None:
        self.names = tuple(names for names, _ in steps)
        self.parts = [operation for _, operation in steps]

    @property
    def steps(self) -> list[Step]:
        """The operations, each with the names of the layers that it comes from."""
        return list(zip(self.names, self.parts, strict=True))

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        for names, operation in self.steps:
            with located(*names):
                it, tt = operation.data(it, tt)
        return it, tt

    def joint(self, left: Blocks, right: Blocks, between: Tensor) -> tuple[Blocks, Blocks, Tensor]:
        for names, operation in self.steps:
            with located(*names):
                left, right, between = operation.joint(left, right, between)
        return left, right, between

    def blocks(self) -> list[Chain]:
        """The chain cut before and after every skip connection: parts worth recomputing."""
        parts: list[list[Step]] = [[]]
        for step in self.steps:
            if isinstance(step[1], SkipPlan):
                parts += [[step], []]
            else:
                parts[-1].append(step)
        return [Chain(steps, steps[-1][1].ii, {}) for steps in parts if steps]

    def premultiplied(self, matrix: Tensor) -> Chain | None:
        steps = self.steps
        return self._with(steps) if fuse.absorbed(steps, matrix) else None

    def split(self) -> tuple[Tensor, Chain] | None:
        return self._without_start("split")

    def thinned(self) -> tuple[Sequence[int], Chain] | None:
        return self._without_start("thinned")

    def _without_start(self, what: str) -> Any:
        """What the first operation begins with, and the chain that is left."""
        if not self.names:
            return None
        (names, operation), *others = self.steps
        found = getattr(operation, what)()
        return found and (found[0], self._with([(names, found[1]), *others]))

    def _with(self, steps: list[Step]) -> Chain:
        made = self.but()
        made._set(steps)
        return made

    def frozen(self, **changes: Any) -> Operation:
        return constant(self._with(fuse.frozen(self.steps)))


def _flat(steps: Sequence[Step]) -> Iterator[Step]:
    """The operations with chains unrolled and identities left out."""
    for names, operation in steps:
        if type(operation) is Chain:
            for inner, each in operation.steps:
                yield tuple(".".join(filter(None, (names[0], name))) for name in inner), each
        elif type(operation) is not IdentityPlan:
            yield names, operation


def require_same_space(given: Tensor, body: Tensor, short: Tensor) -> None:
    """Raise unless the two sides of a skip connection have the same places."""
    if body.shape != short.shape:
        raise GramError(
            f"the block maps places {tuple(given.shape[2:])} to {tuple(body.shape[2:])}, its"
            f" shortcut to {tuple(short.shape[2:])}; a strided block needs a shortcut with the"
            " same stride, such as Conv(P, P', 1, stride=...)"
        )


class SkipPlan(Plan):
    """``(1 − w)·short + w·body``.

    Attributes:
        body, shortcut: the two sides, each with its weight in its own matrices where it can.
        weight: w.
        body_factor, short_factor: what is left to multiply ``it`` by; None where there is nothing.
    """

    def __init__(self, body: Plan, shortcut: Plan, weight: Tensor, kl: dict[str, LayerKL]) -> None:
        super().__init__((1 - weight) * shortcut.ii + weight * body.ii, kl)
        self.weight = weight
        self.body, self.body_factor = _weighted(body, weight)
        self.shortcut, self.short_factor = _weighted(shortcut, 1 - weight)

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        given, short, short_it, short_tt = it, self.shortcut, it, tt
        if torch.is_grad_enabled() and it.requires_grad:
            thinned = short.thinned()
            if thinned is not None and it.ndim == 2 + len(thinned[0]):
                strides, short = thinned
                it, short_it = forked(it, strides)
                short_tt = every(tt, strides)
        with located("body"):
            body_it, body_tt = self.body.data(it, tt)
        with located("shortcut"):
            short_it, short_tt = short.data(short_it, short_tt)
            require_same_space(given, body_it, short_it)
        return self.combined((body_it, body_tt), (short_it, short_tt))

    def joint(self, left: Blocks, right: Blocks, between: Tensor) -> tuple[Blocks, Blocks, Tensor]:
        with located("body"):
            body = self.body.joint(left, right, between)
        with located("shortcut"):
            short = self.shortcut.joint(left, right, between)
            require_same_space(left[0], body[0][0], short[0][0])
        sides = [self.combined(*side) for side in zip(body[:2], short[:2], strict=True)]
        return sides[0], sides[1], torch.lerp(short[2], body[2], self.weight.to(between.dtype))

    def combined(self, body: Blocks, short: Blocks) -> Blocks:
        """The blocks that leave it, from those that leave its sides."""
        variance = torch.lerp(short[1], body[1], self.weight.to(body[1].dtype))
        return _sum(body[0], self.body_factor, short[0], self.short_factor), variance

    def frozen(self, **changes: Any) -> Operation:
        for name in ("body", "shortcut"):
            with located(name):
                side = getattr(self, name)
                # A chain has a place for a matrix that its first operation wants before it.
                line = side if type(side) is Chain else Chain([("", side)], side.ii, {})
                changes[name] = line.frozen()
        return super().frozen(**changes)


def _weighted(side: Plan, weight: Tensor) -> tuple[Plan, Tensor | None]:
    """A side with its weight, or as it is and the weight that is left."""
    made = None if _APART.get() else side.premultiplied(weight)
    return (side, weight) if made is None else (made, None)


def _sum(
    body: Tensor, body_factor: Tensor | None, short: Tensor, short_factor: Tensor | None
) -> Tensor:
    if body_factor is not None and short_factor is not None:
        return torch.lerp(short, body, body_factor.to(body.dtype))
    if body_factor is not None:
        return torch.addcmul(short, body, body_factor.to(body.dtype))
    if short_factor is not None:
        return torch.addcmul(body, short, short_factor.to(body.dtype))
    return body + short


def forked(maps: Tensor, strides: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The map ``(N, P, *space)`` itself, and the same subsampled by strides.

    The gradient of the second is added to that of the first in place; that of a plain slice would
    be written into a map of zeros first.
    """
    whole, part = _Forked.apply(maps, tuple(strides))
    return whole, part


class _Forked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, strides: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        ctx.strides = strides
        return maps.view_as(maps), channels_last(every(maps, strides))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_whole: Tensor, by_part: Tensor) -> Any:
        total = by_whole.clone()
        every(total, ctx.strides).add_(by_part)
        return total, None

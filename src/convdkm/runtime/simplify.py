"""What of a tape need not be played: repetitions, copies of what nobody else uses, idle results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload

from convdkm.runtime.tape import Call, Slot, mapped

_IDLE = {torch.ops.aten.detach.default, torch.ops.aten.alias.default}
"""Operations that do nothing where there is no derivative."""

_SHARING = {torch.ops.aten._unsafe_view.default}
"""Operations whose results share memory with their arguments, though they do not say so."""

KEPT_SHARE = 1 / 256
"""A result is kept for a repetition later on if it is at most this share of the largest tensor."""


def simplified(
    calls: Sequence[Call],
    results: Sequence[Slot],
    outside: AbstractSet[Slot],
    sizes: Mapping[Slot, int],
) -> tuple[list[Call], list[Slot]]:
    """A shorter tape that does the same, and where its results are.

    Args:
        calls: the operations.
        results: what is asked for.
        outside: inputs and constants, which live on.
        sizes: entries of every tensor.
    """
    memory = Memory(calls)
    calls, results = _without_repetition(calls, results, memory, sizes)
    return _without_copies(_needed(calls, results), results, memory, outside)


class Memory:
    """Which tensors of a tape may share memory, and which memory is ever changed."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._parent: dict[Slot, Slot] = {}
        for call in calls:
            if not call.pure or _shares(call.function):
                first, *others = (*call.given, *call.made)
                for slot in others:
                    one, other = self.of(first), self.of(slot)
                    if one != other:
                        self._parent[other] = one
        self._changed = {self.of(slot) for call in calls if not call.pure for slot in call.given}

    def of(self, slot: Slot) -> Slot:
        """A name of the memory that a tensor lies in."""
        while (parent := self._parent.get(slot, slot)) != slot:
            slot = parent
        return slot

    def is_changed(self, slot: Slot) -> bool:
        """Whether an operation changes its arguments, of which this may be one."""
        return self.of(slot) in self._changed


def _shares(function: Any) -> bool:
    if not isinstance(function, OpOverload):
        return False
    returns = function._schema.returns
    return function in _SHARING or any(each.alias_info is not None for each in returns)


def _is_repeatable(call: Call) -> bool:
    """Whether the same arguments give the same result, and that is all it does."""
    if not call.pure or not isinstance(call.results, Slot):
        return False
    function, random = call.function, torch.Tag.nondeterministic_seeded
    return isinstance(function, OpOverload) and random not in function.tags


def _replaced(call: Call, same: Mapping[Slot, Slot]) -> Call:
    """A call with other slots for its arguments."""

    def replacement(each: Any) -> Any:
        return same.get(each, each) if isinstance(each, Slot) else each

    arguments, options = mapped(replacement, (call.arguments, call.options))
    return replace(call, arguments=arguments, options=options)


def _without_repetition(
    calls: Sequence[Call], results: Sequence[Slot], memory: Memory, sizes: Mapping[Slot, int]
) -> tuple[list[Call], list[Slot]]:
    """Without operations that do nothing, or what was done before and can be kept."""
    same: dict[Slot, Slot] = {}
    done: dict[str, Slot] = {}
    largest = KEPT_SHARE * max(sizes.values(), default=0)
    kept = []
    for original in calls:
        call, made = _replaced(original, same), original.results
        if call.function in _IDLE:
            same[made] = call.arguments[0]
            continue
        if _is_repeatable(call):
            small = sizes.get(made, 0) <= largest
            changed = any(map(memory.is_changed, (made, *call.given)))
            if _shares(call.function) or (small and not changed):
                key = f"{call.function} {call.arguments!r} {call.options!r}"
                if key in done:
                    same[made] = done[key]
                    continue
                done[key] = made
        kept.append(call)
    return kept, [same.get(slot, slot) for slot in results]


def _needed(calls: Sequence[Call], results: Sequence[Slot]) -> list[Call]:
    """Without operations whose results nobody uses."""
    used, kept = set(results), []
    for call in reversed(calls):
        if not call.pure or used.intersection(call.made):
            used.update(call.given)
            kept.append(call)
    return kept[::-1]


def _without_copies(
    calls: Sequence[Call], results: Sequence[Slot], memory: Memory, outside: AbstractSet[Slot]
) -> tuple[list[Call], list[Slot]]:
    """Without copies of tensors that are of no use afterwards: the original takes their place."""
    last = {memory.of(slot): place for place, call in enumerate(calls) for slot in call.given}
    last |= {memory.of(slot): len(calls) for slot in (*outside, *results)}
    same: dict[Slot, Slot] = {}
    kept = []
    for place, original in enumerate(calls):
        call = _replaced(original, same)
        if call.is_plain_copy and last[memory.of(original.arguments[0])] == place:
            same[call.results] = call.arguments[0]
        else:
            kept.append(call)
    return kept, [same.get(slot, slot) for slot in results]

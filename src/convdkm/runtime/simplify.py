"""What of a tape need not be played: repetitions, copies of what nobody else uses, idle results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload

from convdkm.runtime.tape import Call, Slot, mapped, slots_of

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
    """A shorter tape that does the same.

    Args:
        calls: the operations.
        results: what is asked for.
        outside: inputs and constants, which live on.
        sizes: numbers in every tensor.

    Returns:
        The operations, and where the results are.
    """
    memory = Memory(calls)
    calls, results = _without_repetition(calls, results, memory, sizes)
    calls = _needed(calls, results)
    calls, results = _without_copies(calls, results, memory, outside)
    return calls, results


class Memory:
    """Which tensors of a tape may share memory, and which memory is ever changed."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._parent: dict[Slot, Slot] = {}
        changed: list[Slot] = []
        for call in calls:
            given = slots_of((call.arguments, call.options))
            made = slots_of(call.results)
            if not call.pure or _shares(call.function):
                for slot in (*given, *made):
                    self._join((*given, *made)[0], slot)
            if not call.pure:
                changed += given
        self._changed = {self.of(slot) for slot in changed}

    def of(self, slot: Slot) -> Slot:
        """A name of the memory that a tensor lies in."""
        while (parent := self._parent.get(slot, slot)) != slot:
            slot = parent
        return slot

    def is_changed(self, slot: Slot) -> bool:
        """Whether an operation changes its arguments, of which this may be one."""
        return self.of(slot) in self._changed

    def _join(self, one: Slot, other: Slot) -> None:
        first, second = self.of(one), self.of(other)
        if first != second:
            self._parent[second] = first


def _shares(function: Any) -> bool:
    if not isinstance(function, OpOverload):
        return False
    returns = function._schema.returns
    return function in _SHARING or any(each.alias_info is not None for each in returns)


def _is_repeatable(function: Any) -> bool:
    """Whether the same arguments give the same result."""
    random = torch.Tag.nondeterministic_seeded
    return isinstance(function, OpOverload) and random not in function.tags


def _replaced(value: Any, same: Mapping[Slot, Slot]) -> Any:
    if isinstance(value, Slot):
        return same.get(value, value)
    if isinstance(value, dict):
        return {name: _replaced(each, same) for name, each in value.items()}
    return mapped(lambda each: _replaced(each, same), value)


def _without_repetition(
    calls: Sequence[Call], results: Sequence[Slot], memory: Memory, sizes: Mapping[Slot, int]
) -> tuple[list[Call], list[Slot]]:
    """Without operations that do nothing, or what was done before and can be kept."""
    same: dict[Slot, Slot] = {}
    done: dict[str, Slot] = {}
    largest = KEPT_SHARE * max(sizes.values(), default=0)
    kept = []
    for call in calls:
        arguments, options = _replaced(call.arguments, same), _replaced(call.options, same)
        if call.function in _IDLE:
            same[call.results] = arguments[0]
            continue
        made = call.results
        if call.pure and isinstance(made, Slot) and _is_repeatable(call.function):
            view = _shares(call.function)
            slots = [made, *slots_of((arguments, options))]
            small = sizes.get(made, 0) <= largest
            if view or (small and not any(memory.is_changed(slot) for slot in slots)):
                key = f"{call.function} {arguments!r} {options!r}"
                if key in done:
                    same[made] = done[key]
                    continue
                done[key] = made
        kept.append(replace(call, arguments=arguments, options=options))
    return kept, [same.get(slot, slot) for slot in results]


def _needed(calls: Sequence[Call], results: Sequence[Slot]) -> list[Call]:
    """Without operations whose results nobody uses."""
    used, kept = set(results), []
    for call in reversed(calls):
        if not call.pure or used.intersection(slots_of(call.results)):
            used.update(slots_of((call.arguments, call.options)))
            kept.append(call)
    return kept[::-1]


def _without_copies(
    calls: Sequence[Call], results: Sequence[Slot], memory: Memory, outside: AbstractSet[Slot]
) -> tuple[list[Call], list[Slot]]:
    """Without copies of tensors that are of no use afterwards: the original takes their place."""
    last: dict[Slot, int] = {memory.of(slot): len(calls) for slot in (*outside, *results)}
    for number, call in enumerate(calls):
        for slot in slots_of((call.arguments, call.options)):
            last[memory.of(slot)] = max(number, last.get(memory.of(slot), 0))
    same: dict[Slot, Slot] = {}
    kept = []
    for number, call in enumerate(calls):
        arguments, options = _replaced(call.arguments, same), _replaced(call.options, same)
        if call.is_plain_copy and last[memory.of(call.arguments[0])] == number:
            same[call.results] = arguments[0]
            continue
        kept.append(replace(call, arguments=arguments, options=options))
    return kept, [same.get(slot, slot) for slot in results]

"""Python code made from a tape: one call after the other, and nothing kept longer than needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from convdkm.runtime.simplify import simplified
from convdkm.runtime.tape import Call, Slot, Tape


def recorded(
    function: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]
) -> Callable[..., list[Tensor]]:
    """Call a function once, and make a program of what it did.

    Args:
        function: what to record; it works on ``inputs``, and may work out derivatives inside.
        inputs: what the program will be given, in this order.

    Returns:
        The program: inputs of the same shapes → results as of ``function``. Its results have no
        derivative. The results of the call that was recorded are dropped.
    """
    tape = Tape(inputs)
    with tape:
        results = [tape.slot(result) for result in function()]
    outside = {*tape.inputs, *tape.constants}
    calls, results = simplified(tape.calls, results, outside, tape.sizes)
    writer = _Writer()
    for slot, tensor in tape.constants.items():
        writer.names[slot] = writer.constant(tensor.detach())
    return writer.written(calls, tape.inputs, results)


_PLAIN = {"aten::_unsafe_view": "view"}
"""Operators of autograd's, and methods that do the same."""


def _quickest(call: Call) -> Call:
    """The same operation as ``torch.name`` or a method of tensors, which start sooner.

    Those that are built in take the operator's arguments in its order. Functions that are written
    in Python may not, and are passed over.
    """
    function = call.function
    if not isinstance(function, OpOverload) or function.namespace != "aten":
        return call
    if function is torch.ops.aten._to_copy.default and call.options.keys() == {"dtype"}:
        arguments = (*call.arguments, call.options["dtype"], False, True)
        return replace(call, function=Tensor.to, arguments=arguments, options={})
    name = _PLAIN.get(function._schema.name) or function._schema.name.removeprefix("aten::")
    for home, kind in ((torch, BuiltinFunctionType), (Tensor, MethodDescriptorType)):
        found = getattr(home, name, None)
        if isinstance(found, kind):
            return replace(call, function=found)
    return call


class _Writer:
    """Writes a tape as the source of a Python function."""

    def __init__(self) -> None:
        self.globals: dict[str, Any] = {}
        self.names: dict[Slot, str] = {}
        self._known: dict[Any, str] = {}

    def constant(self, value: Any) -> str:
        """The name of a value that is the same whenever the program runs."""
        key = id(value)
        if key not in self._known:
            self._known[key] = f"c{len(self.globals)}"
            self.globals[self._known[key]] = value
        return self._known[key]

    def text(self, value: Any) -> str:
        """An argument."""
        if isinstance(value, Slot):
            return self.names[value]
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            inside = "".join(f"{self.text(each)}, " for each in value)
            kind = self.constant(type(value)) if hasattr(value, "_fields") else ""
            return f"[{inside}]" if isinstance(value, list) else f"{kind}({inside})"
        literal = value is None or isinstance(value, (bool, int, str))
        if literal or (isinstance(value, float) and math.isfinite(value)):
            return repr(value)
        return self.constant(value)

    def target(self, value: Any) -> str:
        """What a result is assigned to."""
        if isinstance(value, Slot):
            return self.names.setdefault(value, f"t{value.place}")
        if isinstance(value, (tuple, list)):
            return "[" + ", ".join(self.target(each) for each in value) + "]"
        return "_"

    def written(
        self, calls: Sequence[Call], inputs: Sequence[Slot], results: Sequence[Slot]
    ) -> Callable[..., list[Tensor]]:
        for slot in inputs:
            self.names[slot] = f"t{slot.place}"
        last = {
            slot: place for place, call in enumerate(calls) for slot in (*call.given, *call.made)
        }
        stays = {*inputs, *results, *(s for s, n in self.names.items() if n.startswith("c"))}
        lines = [f"def play({', '.join(self.names[slot] for slot in inputs)}):"]
        for place, call in enumerate(map(_quickest, calls)):
            given = [self.text(each) for each in call.arguments]
            given += [f"{name}={self.text(value)}" for name, value in call.options.items()]
            line = f"{self.constant(call.function)}({', '.join(given)})"
            if any(slot not in self.names for slot in call.made):
                line = f"{self.target(call.results)} = {line}"
            used = {*call.given, *call.made} - stays
            done = sorted(self.names[slot] for slot in used if last[slot] == place)
            lines += [f" {line}", *([f" del {', '.join(done)}"] if done else [])]
        lines.append(f" return [{', '.join(self.names[slot] for slot in results)}]")
        exec(compile("\n".join(lines), "<tape>", "exec"), self.globals)
        return torch.no_grad()(self.globals["play"])

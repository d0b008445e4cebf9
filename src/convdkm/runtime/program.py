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

from convdkm.runtime.blas import added_product, numpy_is_faster, product
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
    return _written(calls, tape, results)


_BY_NUMPY: dict[OpOverload, Callable[..., Tensor]] = {
    torch.ops.aten.mm.default: product,
    torch.ops.aten.addmm.default: added_product,
}
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
    if numpy_is_faster() and function in _BY_NUMPY:
        return replace(call, function=_BY_NUMPY[function])
    name = _PLAIN.get(function._schema.name) or function._schema.name.removeprefix("aten::")
    for home, kind in ((torch, BuiltinFunctionType), (Tensor, MethodDescriptorType)):
        found = getattr(home, name, None)
        if isinstance(found, kind):
            return replace(call, function=found)
    return call


def _written(
    calls: Sequence[Call], tape: Tape, results: Sequence[Slot]
) -> Callable[..., list[Tensor]]:
    """The operations of a tape as a Python function, which is written and compiled."""
    values: dict[str, Any] = {slot: tensor.detach() for slot, tensor in tape.constants.items()}
    names: dict[int, str] = {}

    def constant(value: Any) -> str:
        """The name of a value that is the same whenever the program runs."""
        name = names.setdefault(id(value), f"c{len(names)}")
        values[name] = value
        return name

    def text(value: Any) -> str:
        """An argument."""
        if isinstance(value, Slot):
            return value
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            inside = "".join(f"{text(each)}, " for each in value)
            kind = constant(type(value)) if hasattr(value, "_fields") else ""
            return f"[{inside}]" if isinstance(value, list) else f"{kind}({inside})"
        literal = value is None or isinstance(value, (bool, int, str))
        if literal or (isinstance(value, float) and math.isfinite(value)):
            return repr(value)
        return constant(value)

    def target(value: Any) -> str:
        """What a result is assigned to."""
        if isinstance(value, (tuple, list)):
            return "[" + ", ".join(map(target, value)) + "]"
        return value if isinstance(value, Slot) else "_"

    there = {*tape.inputs, *tape.constants}
    stays = {*there, *results}
    last = {slot: place for place, call in enumerate(calls) for slot in (*call.given, *call.made)}
    lines = [f"def play({', '.join(tape.inputs)}):"]
    for place, call in enumerate(map(_quickest, calls)):
        given = [text(each) for each in call.arguments]
        given += [f"{name}={text(value)}" for name, value in call.options.items()]
        line = f"{constant(call.function)}({', '.join(given)})"
        if not there.issuperset(call.made):
            there.update(call.made)
            line = f"{target(call.results)} = {line}"
        done = {slot for slot in (*call.given, *call.made) if last[slot] == place} - stays
        lines += [f" {line}", *([f" del {', '.join(sorted(done))}"] if done else [])]
    lines.append(f" return [{', '.join(results)}]")
    exec(compile("\n".join(lines), "<tape>", "exec"), values)
    return torch.no_grad()(values["play"])

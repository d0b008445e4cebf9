"""Functions of rows made by ``torch.compile``, for any number of rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from convdkm.runtime.tape import tape_under_way

PROGRAMS = 64
"""Kinds of arguments that a function is compiled for, each for itself."""

_PATCHES = {
    "cpp.dynamic_threads": True,
    "realize_reads_threshold": 64,
    "realize_opcount_threshold": 1024,
}
"""What several results have in common is worked out again for each of them, and not written to
memory: gradients of kernels then take a quarter to half of the time, and one map less."""


def compile_fx(*arguments: Any, **options: Any) -> Any:
    """PyTorch's own compiler, which takes a second to import."""
    from torch._inductor.compile_fx import compile_fx as made

    return made(*arguments, **options)


class _Use(NamedTuple):
    """A program that the compiler made, what it was given and what it returned."""

    program: Callable[..., Any]
    given: tuple[Any, ...]
    results: Sequence[Any]


def apart(programs: int) -> dict[str, Any]:
    """Options of ``torch.compile`` for so many programs of a function, counted for it alone.

    An older torch knows none, and stops at 8.
    """
    known = inspect.signature(torch.compile).parameters
    options = {"recompile_limit": programs, "isolate_recompiles": True}
    return options if options.keys() <= known.keys() else {}


def compiled_for_rows(
    function: Callable[..., Any], *, any_width: bool = False
) -> Callable[..., Any]:
    """Compile for any number of rows; once more for every P, where its loops are worth unrolling.

    Left to itself, the compiler takes P for a number that varies as soon as it sees a second one.

    A tape notes the program that the compiler made, not the call of the function: the search for
    the program among those made takes longer than a small program itself.

    Args:
        function: of tensors ``(rows, P)`` and the like.
        any_width: make one program for all P.
    """
    uses: list[_Use] = []

    def watched(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        program: Any = compile_fx(graph, inputs, config_patches=_PATCHES)

        def run(*given: Any) -> Any:
            results = program(*given)
            if tape_under_way() is not None:
                uses.append(_Use(program, given, results))
            return results

        return run

    fast = torch.compile(function, dynamic=any_width, backend=watched, **apart(PROGRAMS))

    def call(*given: Any) -> Any:
        alone = tuple(map(_detached, given))
        if not any_width:
            _mark_rows(alone)
        tape = tape_under_way()
        if tape is None:
            return fast(*alone)
        uses.clear()
        with tape.unseen():
            result = fast(*alone)
        found = result if isinstance(result, tuple) else (result,)
        use = uses[0] if len(uses) == 1 else None
        if use is not None and list(map(id, use.results)) == list(map(id, found)):
            tape.add(use.program, use.given, {}, use.results, pure=True)
        else:
            tape.add(fast, alone, {}, result, pure=True)
        uses.clear()
        return result

    return call


def _detached(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_detached, value))
    return value.detach() if isinstance(value, Tensor) else value


def _mark_rows(given: Sequence[Any]) -> None:
    """Tell the compiler that the number of rows varies."""
    tensors = [
        tensor
        for each in given
        for tensor in (each if isinstance(each, tuple) else (each,))
        if isinstance(tensor, Tensor)
    ]
    rows = tensors[0].shape[0]
    for tensor in tensors if rows > 1 else ():
        if tensor.ndim and tensor.shape[0] == rows:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)

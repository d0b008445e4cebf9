"""Functions of rows made by ``torch.compile``, for any number of rows."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from convdkm.runtime.tape import mapped, tape_under_way

PROGRAMS = 64
"""Kinds of arguments that a function is compiled for, each for itself."""

_PATCHES = {
    "cpp.dynamic_threads": True,
    "realize_reads_threshold": 64,
    "realize_opcount_threshold": 1024,
}
"""What several results have in common is worked out again for each of them, and not written to
memory: gradients of kernels then take a quarter to half of the time, and one map less."""

_LOG = logging.getLogger(__name__)
_Made = TypeVar("_Made")


def compilable(model: nn.Module) -> list[Any]:
    """The parts of a machine whose ``compiled`` says whether they use compiled functions."""
    return [part for part in model.modules() if isinstance(getattr(part, "compiled", None), bool)]


def attempted(make: Callable[[], _Made]) -> _Made | None:
    """What ``make`` compiles; None, and a warning in the log, where nothing compiles."""
    try:
        return make()
    except Exception as error:  # the compiler's errors have no type in common
        _LOG.warning("nothing is compiled, PyTorch's own operations are used: %s", reason_of(error))
        return None


def reason_of(error: Exception) -> str:
    """The first line of what a compiler says, which may be hundreds."""
    error = getattr(error, "inner_exception", error)  # of a backend of torch.compile
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def compile_fx(*arguments: Any, **options: Any) -> Any:
    """PyTorch's own compiler, which takes a second to import."""
    from torch._inductor.compile_fx import compile_fx as made

    return made(*arguments, **options)


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
    uses: list[tuple[Callable[..., Any], tuple[Any, ...], Sequence[Any]]] = []

    def watched(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        program: Any = compile_fx(graph, inputs, config_patches=_PATCHES)

        def run(*given: Any) -> Any:
            results = program(*given)
            if tape_under_way() is not None:
                uses.append((program, given, results))
            return results

        return run

    fast = torch.compile(function, dynamic=any_width, backend=watched, **apart(PROGRAMS))

    def call(*given: Any) -> Any:
        alone = mapped(_detached, given)
        if not any_width:
            _mark_rows(alone)
        tape = tape_under_way()
        if tape is None:
            return fast(*alone)
        uses.clear()
        with tape.unseen():
            result = fast(*alone)
        found = result if isinstance(result, tuple) else (result,)
        use = (fast, alone, result)
        if len(uses) == 1 and list(map(id, uses[0][2])) == list(map(id, found)):
            use = uses[0]
        tape.add(use[0], use[1], {}, use[2], pure=True)
        uses.clear()
        return result

    return call


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _mark_rows(given: Sequence[Any]) -> None:
    """Tell the compiler that the number of rows varies."""
    flat = (each if isinstance(each, tuple) else (each,) for each in given)
    tensors = [each for part in flat for each in part if isinstance(each, Tensor)]
    rows = tensors[0].shape[0]
    for tensor in tensors if rows > 1 else ():
        if tensor.ndim and tensor.shape[0] == rows:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)

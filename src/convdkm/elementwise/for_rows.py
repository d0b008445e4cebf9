"""Functions of rows made by ``torch.compile``, for any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from convdkm.recording.tape import tape_under_way

SMALLEST_ROOT = 1e-18
"""Roots below it are inverted as if they were this, whose square is in the range of float32."""


class Roots(NamedTuple):
    """Of the variances of one side: their inverse roots, and roots.

    Where a variance is zero the inverse root is large, and finite: what it is multiplied by, the
    covariances and sums over sines, is zero there.

    Worked out before a compiled function is called: inside, a pixel's would be worked out anew for
    every number of its row.
    """

    inverse: Tensor
    root: Tensor

    @classmethod
    def of(cls, variances: Tensor) -> Roots:
        """Of variances."""
        root = variances.sqrt()
        return cls(root.clamp(min=SMALLEST_ROOT).reciprocal(), root)

    def by_variances(self, sums: Tensor) -> Tensor:
        """What is summed up for each variance, over twice the variance."""
        return 0.5 * sums * self.inverse * self.inverse


class _Use(NamedTuple):
    """A program that the compiler made, what it was given and what it returned."""

    program: Callable[..., Any]
    given: tuple[Any, ...]
    results: Sequence[Any]


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
        from torch._inductor.compile_fx import compile_fx

        program: Any = compile_fx(graph, inputs, config_patches={"cpp.dynamic_threads": True})

        def run(*given: Any) -> Any:
            results = program(*given)
            if tape_under_way() is not None:
                uses.append(_Use(program, given, results))
            return results

        return run

    fast = torch.compile(function, dynamic=any_width, backend=watched)
    known: set[Any] = set()

    def call(*given: Tensor | Roots | tuple[float, ...] | None) -> Any:
        alone = tuple(each.detach() if isinstance(each, Tensor) else each for each in given)
        if not any_width:
            _mark_rows(alone, known)
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


def _mark_rows(given: Sequence[Any], known: set[Any]) -> None:
    """Tell the compiler that the number of rows varies, where it will see something new."""
    tensors = [each for each in given if isinstance(each, Tensor)]
    rows = tensors[0].shape[0]
    tensors += [root for each in given if isinstance(each, Roots) for root in each]
    others = tuple(each for each in given if not isinstance(each, (Tensor, Roots)))
    kind = (others, *((tensor.ndim, tensor.shape[1:], tensor.dtype) for tensor in tensors))
    if rows > 1 and kind not in known:
        known.add(kind)
        for tensor in tensors:
            if tensor.ndim and tensor.shape[0] == rows:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)

r"""What training costs, in floating-point operations.

A multiply-add is two FLOPs. Counted are the operations that PyTorch starts, forward and backward,
and those of the optimiser. What activation checkpointing works out again counts again.

=============================== ========================================================
convolutions, matrix products   2 for each pair of numbers that are multiplied, padding included;
                                each gradient of a convolution as much as the convolution
Cholesky                        :math:`n^3/3`
triangular solve                :math:`n^2` for each right-hand side
LU (determinants), solve by it  :math:`2n^3/3`, and :math:`2n^2` for each right-hand side
inverse                         :math:`2n^3`, and :math:`2n^3/3` from a Cholesky factor
eigenvectors, eigenvalues alone :math:`9n^3`, :math:`4n^3/3`
elementwise functions           1 for each number of the result, whatever the function
sums, means, extremes           1 for each number that goes in
batch normalisation             6 for each number forward, and 9 backward; 2 in evaluation
Adam                            12 for each parameter
=============================== ========================================================

What moves or converts numbers is free. Compiled functions count as the same functions of PyTorch.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from convdkm.config import Recipe
from convdkm.data.augment import resized
from convdkm.model import DeepKernelMachine
from convdkm.runtime.compiled import compilable, reason_of
from convdkm.training.batches import Batches
from convdkm.training.optimiser import Optimiser
from convdkm.training.passes import Passes
from convdkm.training.schedule import image_scale
from convdkm.training.world import World

FEWEST = 2
"""Images of the smaller of two steps that are counted; normalisations need more than one."""
_FREE = {"clone", "copy", "fill", "zero", "alias", "detach", "lift_fresh"}
_REDUCTIONS = {
    *("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "var", "std"),
    *("var_mean", "std_mean", "linalg_vector_norm", "logsumexp", "cumsum", "any", "all"),
}
_Formula = Callable[..., float]


def flops(action: Callable[[], object]) -> float:
    """The FLOPs of all that an action does."""
    with _Counter() as counter:
        action()
    return counter.total


@dataclass(frozen=True)
class StepCost:
    """FLOPs of a training step: ``fixed``, and ``per_image`` for each image of the batch."""

    fixed: float
    per_image: float

    def at(self, images: float) -> float:
        """The FLOPs of a step on so many images."""
        return self.fixed + self.per_image * images


def line(step: Callable[[int], object]) -> StepCost:
    """The cost of a step, given the number of images, from two steps on a few of them.

    All operations are either independent of the number of images or proportional to it.
    """
    few, more = flops(lambda: step(FEWEST)), flops(lambda: step(2 * FEWEST))
    per_image = (more - few) / FEWEST
    return StepCost(few - FEWEST * per_image, per_image)


def countable(model: DeepKernelMachine) -> DeepKernelMachine:
    """A copy of a machine that uses PyTorch's operations and not compiled functions."""
    copied = copy.deepcopy(model)
    for part in compilable(copied):
        part.compiled = False
    return copied


def step_cost(
    model: DeepKernelMachine, recipe: Recipe, inputs: Tensor, targets: Tensor
) -> StepCost:
    """What the steps of a run cost, as one process does them.

    Steps on a few images are taken with a copy of the machine. The machine, its gradients and the
    state of random numbers are left as they are.

    Args:
        model: the machine, which has been initialised.
        recipe: how it is trained.
        inputs, targets: a few images, and their labels.
    """
    copied = countable(model).train()
    optimiser = Optimiser(copied, recipe, num_data=1)

    def step(images: int, pieces: int = 1) -> None:
        chosen = torch.arange(images, device=inputs.device) % len(inputs)
        optimiser.zero_grad()
        passes = Passes(copied, World(), num_data=1, micro_batch=images // pieces)
        passes.gradients(inputs[chosen], targets[chosen], total=images, seed=0)
        optimiser.step()

    pieces = -(-recipe.batch_size // (recipe.micro_batch or recipe.batch_size))
    device = model.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        whole = line(step)
        fixed = whole.fixed
        if pieces > 1:
            images = 2 * FEWEST
            fixed += (pieces - 1) * (flops(lambda: step(images, 2)) - whole.at(images))
    return StepCost(fixed, whole.per_image)


def run_flops(model: DeepKernelMachine, batches: Batches, recipe: Recipe, steps: int) -> float:
    """The FLOPs of so many steps of a run, however many processes share them."""
    images = next(batches.clean(2 * FEWEST))
    labels = batches.targets[: len(images)]
    total, size = recipe.epochs * batches.steps, batches.num_data / batches.steps
    scales = Counter(image_scale(recipe, step, total) for step in range(steps))
    return sum(
        count * step_cost(model, recipe, resized(images, scale), labels).at(size)
        for scale, count in scales.items()
    )


def if_countable(count: Callable[[], float | None], warn: Callable[[str], object]) -> float | None:
    """FLOPs where they can be counted; what has been learned is not lost where they cannot."""
    try:
        return count()
    except Exception as error:  # of any kind
        warn(f"FLOPs were not counted: {reason_of(error)}")
        return None


class _Counter(TorchDispatchMode):
    """Adds up the FLOPs of operations below autograd while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        formula = _formula(func)
        if formula is None and isinstance(func, OpOverload):
            with self:  # in inference mode an operation may come as a whole, and not as its parts
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=result)
        return result


@cache
def _formula(operation: Any) -> _Formula | None:
    """FLOPs of an operation from its arguments and ``out_val``, its result; None if it is free."""
    packet = getattr(operation, "_overloadpacket", None)
    name = getattr(packet, "__name__", "").removesuffix("_")
    plain = getattr(torch.ops.aten, name, packet)  # the same, where an operation works in place
    if formula := _FORMULAS.get(name) or flop_registry.get(plain):
        return formula
    if name in _REDUCTIONS or name.startswith("_foreach"):
        return _numbers_in
    if name not in _FREE and torch.Tag.pointwise in getattr(operation, "tags", ()):
        return _numbers_out
    return None


def _numbers(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel()
    return sum(map(_numbers, value)) if isinstance(value, (list, tuple)) else 0


def _numbers_in(first: Any, *_: Any, **__: Any) -> float:
    return _numbers(first)


def _numbers_out(*_: Any, out_val: Any, **__: Any) -> float:
    return _numbers(out_val)


def _convolution_backward(
    outgoing: Tensor, maps: Tensor, weight: Tensor, *rest: Any, **_: Any
) -> float:
    transposed, wanted = rest[4], rest[7]  # gradients by maps, weights and biases
    applied = (maps if transposed else outgoing).numel() * weight[0].numel()
    return 2 * applied * sum(wanted[:2])


def _batch_norm(maps: Tensor, *rest: Any, **_: Any) -> float:
    in_training = any(each is True for each in rest)
    return (6 if in_training else 2) * maps.numel()


def _cubed(share: float) -> _Formula:
    """A factorisation of one or more square matrices."""
    return lambda matrix, *_, **__: share * matrix.shape[-1] * matrix.numel()


def _eigen(matrix: Tensor, *arguments: Any, compute_v: bool = True, **_: Any) -> float:
    with_vectors = arguments[1] if len(arguments) > 1 else compute_v
    return (9 if with_vectors else 4 / 3) * matrix.shape[-1] * matrix.numel()


def _solved(share: float) -> _Formula:
    """A solution, whose size is that of the right-hand sides, with an n×n factor."""

    def formula(*_: Any, out_val: Any, **__: Any) -> float:
        solution = out_val[0] if isinstance(out_val, (list, tuple)) else out_val
        return share * solution.shape[-2] * solution.numel()

    return formula


def _adam(parameters: list[Tensor], *_: Any, **__: Any) -> float:
    return 12 * _numbers(parameters)


_FORMULAS: dict[str, _Formula] = {
    "mv": lambda matrix, *_, **__: 2 * matrix.numel(),
    "addmv": lambda _, matrix, *__, **___: 2 * matrix.numel(),
    "dot": lambda vector, *_, **__: 2 * vector.numel(),
    "convolution_backward": _convolution_backward,
    "linalg_cholesky_ex": _cubed(1 / 3),
    "cholesky_inverse": _cubed(2 / 3),
    "linalg_solve_triangular": _solved(1),
    "triangular_solve": _solved(1),
    "linalg_lu_solve": _solved(2),
    "cholesky_solve": _solved(2),
    "_linalg_slogdet": _cubed(2 / 3),
    "linalg_lu_factor_ex": _cubed(2 / 3),
    "linalg_inv_ex": _cubed(2),
    "_linalg_eigh": _eigen,
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"), _batch_norm
    ),
    **dict.fromkeys(
        ("native_batch_norm_backward", "cudnn_batch_norm_backward"),
        lambda maps, *_, **__: 9 * maps.numel(),
    ),
    **dict.fromkeys(("_softmax", "_log_softmax"), lambda values, *_, **__: 4 * values.numel()),
    "_fused_adam": _adam,
}

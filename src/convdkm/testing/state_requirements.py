"""What layers and likelihoods have in common: their state, and what it survives."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from convdkm.gram import INDUCING_DTYPE
from convdkm.testing.outcome import require


@dataclass
class Case:
    """A module with something to try it on.

    Attributes:
        noun: what the module is.
        fresh: a copy of the module as the user gave it.
        tried: the module initialised, in evaluation mode.
        seed: of the random numbers that a requirement draws.
    """

    noun: ClassVar[str]
    fresh: nn.Module
    tried: nn.Module
    seed: int

    def results(self, module: Any) -> Mapping[str, Tensor]:
        """Everything that such a module gives, by name."""
        raise NotImplementedError(f"{type(self).__name__} must define results(module)")


def require_identical(case: Case, module: nn.Module, what: str) -> None:
    """Raise if a module's results differ from those of the module tried, in any bit."""
    expected = case.results(case.tried)
    for name, value in case.results(module).items():
        require(torch.equal(value, expected[name]), f"{what}: {name} is not identical")


def calling_changes_nothing(case: Case) -> None:
    """Calling creates no parameter or buffer and changes none; in training, buffers may change."""
    training = copy.deepcopy(case.tried).train()
    for mode, module in (("evaluation", case.tried), ("training", training)):
        before = {name: value.detach().clone() for name, value in module.state_dict().items()}
        learned = {name for name, _ in module.named_parameters()}
        case.results(module)
        after, calling = module.state_dict(), f"{mode}: calling the {case.noun}"
        created, lost = after.keys() - before.keys(), before.keys() - after.keys()
        require(not created, f"{calling} created {sorted(created)}")
        require(not lost, f"{calling} removed {sorted(lost)}")
        for name, value in before.items():
            if mode == "evaluation" or name in learned:
                require(torch.equal(after[name], value), f"{calling} changed {name}")


def survives_copying(case: Case) -> None:
    """A deep copy, and a fresh module that loads the state_dict, give identical results."""
    require_identical(case, copy.deepcopy(case.tried), "a deep copy")
    loaded = copy.deepcopy(case.fresh).eval()
    loaded.load_state_dict(case.tried.state_dict())
    require_identical(case, loaded, f"a fresh {case.noun} with the state_dict loaded")


def survives_pickling(case: Case) -> None:
    """Pickled and unpickled, it gives identical results."""
    unpickled = pickle.loads(pickle.dumps(case.tried))
    require_identical(case, unpickled, f"the unpickled {case.noun}")


def parameters_stay_float64(case: Case) -> None:
    """Parameters are float64 and stay so, as do the results, whatever ``.to(dtype)`` is told."""
    for dtype in (torch.float64, torch.float32):
        moved = copy.deepcopy(case.tried).to(dtype)
        for name, value in moved.state_dict().items():
            if value.dtype.is_floating_point:
                require(
                    value.dtype == INDUCING_DTYPE, f"{name} is {value.dtype} after .to({dtype})"
                )
        require_identical(case, moved, f"the {case.noun} after .to({dtype})")


STATE_REQUIREMENTS: tuple[Callable[[Case], None], ...] = (
    survives_copying,
    survives_pickling,
    parameters_stay_float64,
)

"""Gradients of the objective, recorded once and played for every batch of the same shape.

A step on a CPU starts thousands of operations, most of them on the small matrices of the inducing
chain, and Python and autograd take longer to start each than it takes itself. Played from a tape
they are called one after the other, with nothing in between. The results are the same, but for the
order in which a few gradients are added up.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from convdkm.errors import NumericalError
from convdkm.gram import INDUCING_DTYPE
from convdkm.head import Marginals
from convdkm.model import DeepKernelMachine, Objective
from convdkm.ops.base import LayerKL
from convdkm.runtime.maps import without_autocast
from convdkm.runtime.program import recorded
from convdkm.runtime.structure import Structure
from convdkm.runtime.tape import NotRecordableError

_LOG = logging.getLogger(__name__)


class RecordedGradients:
    """Adds the gradient of minus the objective on a batch to every parameter's ``grad``.

    >>> import torch
    >>> import convdkm as dkm
    >>> images, labels = torch.rand(8, 1, 6, 6), torch.arange(8) % 2
    >>> model = dkm.resnet8(1, 2, (4, 4, 4)).initialise(images, labels)
    >>> optimiser = torch.optim.Adam(model.parameters())
    >>> gradients = dkm.RecordedGradients(model, num_data=8)
    >>> for _ in range(3):
    ...     optimiser.zero_grad()
    ...     objective = gradients(images, labels)
    ...     optimiser.step()

    The first batch of a shape is worked on as always, the next is recorded, and from then on the
    record is played. Another shape, or another setting of a layer (its ν, its mode, its window),
    makes a record of its own, and what cannot be recorded is worked on as always: layers that look
    at the numbers in their tensors, likelihoods that draw samples for the share of a batch,
    ``torch.autocast``. A layer of one's own whose plan depends on anything but its parameters,
    buffers and attributes (plain values, lists, dictionaries, objects with attributes) must not be
    recorded.

    Args:
        model: the machine, which has been initialised.
        num_data: number of training images.
        most: records that are kept; when there are as many, no more are made.
    """

    def __init__(self, model: DeepKernelMachine, *, num_data: int, most: int = 4) -> None:
        self.model, self.num_data, self.most = model, num_data, most
        self._structure = Structure(model)
        self._played: dict[Any, _Record | None] = {}
        self._seen: deque[Any] = deque(maxlen=2 * most)

    def __call__(
        self,
        inputs: Tensor,
        targets: Tensor,
        generator: torch.Generator | None = None,
        *,
        nu_factor: float = 1.0,
    ) -> Objective:
        """The objective, its derivatives with the parameters and no further.

        In training mode, Gram layers that sample draw from ``generator`` before, or from torch's
        global one. The derivatives are those of the objective with every ν times ``nu_factor``,
        which may differ from call to call.
        """
        if self.model.training:
            self.model.resample(generator)
        if not self._structure.is_current(self.model):
            self._structure = Structure(self.model)
            self._played.clear()
        key = self._key(inputs, targets)
        record = self._played.get(key)
        if record is None and not self._worth_recording(key):
            self._seen.append(key)
            return self._as_always(inputs, targets, nu_factor)
        batch = self.model.checked_batch(inputs, targets)
        if record is None:
            record = self._played[key] = self._recorded(*batch)
        if record is None:
            return self._as_always(inputs, targets, nu_factor)
        try:
            objective, gradients = record.play(self._structure, *batch, nu_factor)
        except NumericalError:
            return self._as_always(inputs, targets, nu_factor)  # it says where
        self.model.require_finite("the objective", objective.total)
        learned = (p for p in self._structure.parameters if p.requires_grad)
        for parameter, gradient in zip(learned, gradients, strict=True):
            if gradient is not None:
                if parameter.grad is None:
                    parameter.grad = gradient
                else:
                    parameter.grad.add_(gradient)
        return objective

    def _worth_recording(self, key: Any) -> bool:
        """There was one of its kind lately, it is not known to fail, and there is room."""
        return key in self._seen and key not in self._played and len(self._played) < self.most

    def _key(self, inputs: Tensor, targets: Tensor) -> Any:
        batch = tuple((each.shape, each.dtype, each.device) for each in (inputs, targets))
        learned = tuple(p.requires_grad for p in self._structure.parameters)
        precision = self._autocast, self.model.dtype
        return batch, precision, self.num_data, learned, self._structure.settings()

    @property
    def _autocast(self) -> bool:
        kind = self.model.device.type
        return kind != "meta" and torch.is_autocast_enabled(kind)

    def _recorded(self, inputs: Tensor, targets: Tensor) -> _Record | None:
        try:
            return _Record(self.model, self._structure, inputs, targets, self.num_data)
        except NumericalError:
            raise
        except Exception as error:  # of any kind: a step as always says what is wrong, if it is
            reason = error if isinstance(error, NotRecordableError) else repr(error)
            _LOG.warning("steps are not recorded, and go on as always: %s", reason)
            return None

    def _as_always(self, inputs: Tensor, targets: Tensor, nu_factor: float) -> Objective:
        plan = self.model.plan()
        objective = self.model.objective(inputs, targets, num_data=self.num_data, plan=plan)
        (-objective.weighted(nu_factor)).backward()
        return objective


class _Record:
    """A program that works out the objective of a batch and its gradients."""

    def __init__(
        self,
        model: DeepKernelMachine,
        structure: Structure,
        inputs: Tensor,
        targets: Tensor,
        num_data: int,
    ) -> None:
        learned = [p for p in structure.parameters if p.requires_grad]
        state = [buffer.clone() for buffer in structure.buffers]
        nu_factor = torch.ones((), dtype=INDUCING_DTYPE, device=model.device)
        self.num_data = num_data
        self.weights: dict[str, float] = {}
        self.missing: list[bool] = []

        def step() -> list[Tensor]:
            objective = model.objective_of_checked(inputs, targets, num_data=num_data)
            self.weights = {name: term.nu for name, term in objective.kl.items()}
            found = torch.autograd.grad(-objective.weighted(nu_factor), learned, allow_unused=True)
            self.missing = [gradient is None for gradient in found]
            gradients = _separate([each for each in found if each is not None])
            marginals = objective.marginals
            parts = [objective.expected_log_likelihood, objective.head_kl]
            values = [term.value for term in objective.kl.values()]
            return [*parts, marginals.mean, marginals.variance, *values, *gradients]

        try:
            with torch.autograd.set_multithreading_enabled(False):
                self._program: Callable[..., list[Tensor]] = recorded(
                    step, [*structure.parameters, *structure.buffers, inputs, targets, nu_factor]
                )
        finally:
            with torch.no_grad():  # what is recorded is played before it counts
                for buffer, before in zip(structure.buffers, state, strict=True):
                    buffer.copy_(before)

    def play(
        self, structure: Structure, inputs: Tensor, targets: Tensor, nu_factor: float
    ) -> tuple[Objective, list[Tensor | None]]:
        """The objective, and the gradients of all that is learned, with ν times a factor."""
        factor = torch.tensor(nu_factor, dtype=INDUCING_DTYPE, device=inputs.device)
        state = (*structure.parameters, *structure.buffers)
        with without_autocast(inputs):  # the record has the casts
            results = self._program(*state, inputs, targets, factor)
        expected, head_kl, mean, variance, *rest = results
        values, found = rest[: len(self.weights)], iter(rest[len(self.weights) :])
        kl = {
            name: LayerKL(value, nu)
            for (name, nu), value in zip(self.weights.items(), values, strict=True)
        }
        objective = Objective(expected, head_kl, kl, self.num_data, Marginals(mean, variance))
        return objective, [None if missing else next(found) for missing in self.missing]


def _separate(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Gradients that share memory with nothing else, laid out as parameters are."""
    owners: set[int] = set()
    result = []
    for gradient in gradients:
        memory = gradient.untyped_storage()
        whole = memory.nbytes() == gradient.nbytes
        if memory.data_ptr() in owners or not whole or not gradient.is_contiguous():
            result.append(gradient.clone(memory_format=torch.contiguous_format))
        else:
            owners.add(memory.data_ptr())
            result.append(gradient)
    return result

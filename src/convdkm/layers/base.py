r"""What a layer is: a function Gram → Gram, split into what needs data and what does not.

The inducing block of a layer's output depends on the inducing block of its input and on
parameters, never on the data. So every layer works in two steps:

1. :meth:`Layer.plan` takes :math:`G_{ii}` and works out, in float64, the outgoing inducing block,
   the layer's KL term and the matrices that the data will be multiplied by;
2. the resulting :class:`convdkm.ops.base.Plan` maps the data blocks :math:`(G_{it}, g_{tt})`.

``layer(gram)`` does both. In evaluation the first step is constant, and a plan can be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from convdkm.errors import GramError
from convdkm.gram import INDUCING_DTYPE, Gram
from convdkm.ops.base import Plan


class Layer(nn.Module):
    """Base class of everything that maps a Gram to a Gram.

    A subclass defines :meth:`plan`, and :meth:`initialise` if part of its state comes from data.
    Nothing is created or overwritten by calling a layer, but for the running statistics of
    normalisers in training mode.

    The parameters of a layer are float64 and stay so under ``.to(dtype)``, ``.float()`` and the
    like, which choose the precision of the *data* path; ``.to(device)`` moves them as usual.
    """

    def plan(self, ii: Tensor) -> Plan:
        """Work out everything that depends on the incoming inducing block alone."""
        raise NotImplementedError(f"{type(self).__name__} must define plan(ii)")

    def initialise(self, gram: Gram, generator: torch.Generator | None = None) -> Gram:
        """Set the state that comes from data, given a typical incoming Gram; return the outgoing.

        Layers without such state just pass the Gram on.
        """
        del generator
        return self(gram)

    def resample(self, generator: torch.Generator | None = None) -> None:
        """Draw the random numbers of a training step anew; layers without such do nothing.

        They belong in a buffer that is not persistent, which is written in place: the layer is
        then a function of its state, and recorded steps see every draw. It is called for every
        layer by itself (:meth:`convdkm.DeepKernelMachine.resample`).
        """
        del generator

    def forward(self, gram: Gram) -> Gram:
        return self.plan(gram.ii)(gram)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        return super()._apply(keep_dtype(fn), recurse)


def keeps(layer: nn.Module, kind: type[nn.Module], *functions: str) -> bool:
    """Whether these functions of a layer are those of ``kind``.

    If neither a derived class nor the layer itself overrides them, a faster way to the same result
    may take their place.
    """
    return all(
        getattr(getattr(layer, name), "__func__", None) is getattr(kind, name) for name in functions
    )


def keep_dtype(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """``fn`` of ``nn.Module._apply``, made to move tensors but never to change their dtype."""

    def move(tensor: Tensor) -> Tensor:
        moved = fn(tensor)
        return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

    return move


class LazyState(Layer):
    """A layer some of whose parameters or buffers take their shape from the first Gram seen.

    They are ``None`` until :meth:`Layer.initialise` or ``load_state_dict`` gives them a shape.
    """

    _place: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_place", torch.empty(0), persistent=False)

    def lazy_state(self) -> tuple[str, ...]:
        """Names of the parameters and buffers whose shapes come from data."""
        raise NotImplementedError(f"{type(self).__name__} must define lazy_state()")

    def materialise(self, name: str, value: Tensor) -> None:
        """Give the parameter or buffer ``name`` its first (or a new) value."""
        value = value.detach().to(self._place.device, INDUCING_DTYPE).clone()
        current = getattr(self, name)
        if current is not None and current.shape == value.shape:
            with torch.no_grad():
                current.copy_(value)
        elif name in self._parameters:
            self.register_parameter(name, nn.Parameter(value))
        else:
            self.register_buffer(name, value)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        for name in self.lazy_state():
            saved = state_dict.get(prefix + name)
            current = getattr(self, name)
            if saved is not None and (current is None or current.shape != saved.shape):
                self.materialise(name, torch.zeros(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def require_inducing(ii: Tensor, expected: int) -> None:
    """Raise unless the incoming Gram has the number of inducing points a layer was built for."""
    if ii.shape[0] != expected:
        raise GramError(
            f"this layer takes a Gram with {expected} inducing points, got one with {ii.shape[0]}"
        )

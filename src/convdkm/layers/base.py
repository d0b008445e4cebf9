r"""What a layer is: a function Gram → Gram, split into what needs data and what does not.

The inducing block of a layer's output depends on the inducing block of its input and on
parameters, never on the data. So every layer works in two steps:

1. :meth:`Layer.plan` takes :math:`G_{ii}` and works out, in float64, the outgoing inducing block,
   the layer's KL term and the matrices that the data will be multiplied by;
2. the resulting :class:`Plan` maps the data blocks :math:`(G_{it}, g_{tt})`.

``layer(gram)`` does both. In evaluation the first step is constant, and a plan can be kept.

Because plans are values, neighbours can be merged before any data is seen: a plan that begins with
a left-multiplication of :math:`G_{it}` gives it away (:meth:`Plan.split`) and the plan before it
takes it into its own weights (:meth:`Plan.premultiplied`). That is how the whitening
:math:`L^{-1}` of a Gram layer becomes part of the convolution that precedes it. And a plan may know
how to do its own work and that of the next in one go (:meth:`Plan.joined`): a kernel with the
convolution after it, a Gram layer with the centring and the scaling after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from convdkm.errors import GramError
from convdkm.gram import INDUCING_DTYPE, Gram


@dataclass(frozen=True, eq=False)
class LayerKL:
    r"""The regulariser of one Gram layer, :math:`D_{KL}(N(0,G_{ii}) \| N(0,K_{ii}))`, and its ν.

    Attributes:
        value: the divergence in nats, a float64 scalar.
        nu: its weight :math:`\nu_\ell` in the objective.
    """

    value: Tensor
    nu: float

    @property
    def weighted(self) -> Tensor:
        r""":math:`\nu_\ell D_{KL}`; exactly zero where :math:`\nu_\ell = 0`."""
        return self.nu * self.value if self.nu else torch.zeros_like(self.value)


class Plan:
    """A layer's map of the data blocks, with everything that is free of data worked out.

    Attributes:
        ii: the outgoing inducing block.
        kl: the KL terms of the Gram layers inside, by name.
    """

    def __init__(self, ii: Tensor, kl: Mapping[str, LayerKL] | None = None) -> None:
        self.ii = ii
        self.kl: dict[str, LayerKL] = dict(kl or {})

    def data(self, it: Tensor, tt: Tensor) -> tuple[Tensor, Tensor]:
        """Map the data blocks ``it`` and ``tt``."""
        raise NotImplementedError(f"{type(self).__name__} must define data(it, tt)")

    def premultiplied(self, matrix: Tensor) -> Plan | None:
        """This plan followed by ``it ← matrix · it``, if that costs nothing; else None.

        A vector stands for a diagonal matrix, a number for a multiple of the identity.
        """
        del matrix
        return None

    def joined(self, after: Plan) -> Plan | None:
        """This plan followed by ``after``, as one plan that costs less; None if there is none."""
        del after
        return None

    def split(self) -> tuple[Tensor, Plan] | None:
        """``(matrix, rest)`` such that this plan is ``it ← matrix · it`` followed by ``rest``."""
        return None

    def thinned(self) -> tuple[Sequence[int], Plan] | None:
        """``(strides, rest)`` if this plan takes every so-many-th place, and then does ``rest``."""
        return None

    def __call__(self, gram: Gram) -> Gram:
        it, tt = self.data(gram.it, gram.tt)
        return Gram(self.ii, it, tt)


class IdentityPlan(Plan):
    """Passes the data through."""

    def data(self, it: Tensor, tt: Tensor) -> tuple[Tensor, Tensor]:
        return it, tt


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

    def forward(self, gram: Gram) -> Gram:
        return self.plan(gram.ii)(gram)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        return super()._apply(keep_dtype(fn), recurse)


def keeps(layer: nn.Module, kind: type[nn.Module], *functions: str) -> bool:
    """Whether these functions of a layer are those of ``kind``.

    And not of a class derived from it, nor set for this layer alone: only then may something else
    that gives the same, such as a faster way, take their place.
    """
    own = (getattr(getattr(layer, name), "__func__", None) for name in functions)
    return all(mine is getattr(kind, name) for mine, name in zip(own, functions, strict=True))


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

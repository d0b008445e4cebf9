r"""What an operation is, and the plan of a layer: its map of the data blocks.

Neighbours are merged before any data is seen: an operation that begins with a left-multiplication
of :math:`G_{it}` gives it away (:meth:`Operation.split`), and the one before takes it into its
weights (:meth:`Operation.premultiplied`). That is how the whitening :math:`L^{-1}` of a Gram layer
becomes part of the convolution that precedes it; :mod:`convdkm.ops.fuse` decides what is merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from convdkm.errors import ConvDKMError, GramError
from convdkm.gram import Gram
from convdkm.numerics import left_multiply

if TYPE_CHECKING:
    from typing_extensions import Self

Blocks = tuple[Tensor, Tensor]
"""The data blocks ``it`` and ``tt``."""

BATCH_STATISTICS = (
    "normalises by the statistics of each batch (statistics='batch'), so that a prediction depends"
    " on its neighbours; model.calibrate(batches) and model.folded(deterministic=True) use running"
    " averages instead"
)

MODULE = frozenset(vars(nn.Module()))
"""Attributes that every module has."""
_OF_TRAINING = ("ii", "kl")

Module = TypeVar("Module", bound=nn.Module)


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


class Operation(nn.Module):
    """A map of data with everything that is free of data worked out.

    All that it is made of are its attributes: tensors, plain values (numbers, text, tuples of them)
    and modules. In training the tensors have gradients; :meth:`frozen` makes them constants.

    Attributes:
        first: name of the attribute with the matrix that ``it`` is multiplied by first, if any.
        last: name of the attribute with the matrix that ``it`` is multiplied by last, if any.
        added: attributes that files of earlier versions lack, and that are None there.
        obstacle: why it cannot be written to a file; None if it can.
    """

    first: ClassVar[str | None] = None
    last: ClassVar[str | None] = None
    added: ClassVar[tuple[str, ...]] = ()
    obstacle: str | None = None

    def __init__(self) -> None:
        """Leave the module bare: it is made for every training step, and filled when frozen."""

    def __setattr__(self, name: str, value: Any) -> None:
        if is_frozen(self):
            super().__setattr__(name, value)
        else:
            vars(self)[name] = value

    def but(self, **changes: Any) -> Self:
        """The same operation with some attributes changed; for those that are not frozen."""
        made = type(self).__new__(type(self))
        vars(made).update({**vars(self), **changes})
        return made

    def settled(self) -> Operation:
        """The same with everything worked out that a neighbour might have saved it."""
        return self

    def split(self) -> tuple[Tensor, Self] | None:
        """``(matrix, rest)`` such that this is ``it ← matrix · it`` followed by ``rest``."""
        matrix = None if self.first is None else getattr(self, self.first)
        return None if matrix is None else (matrix, self.but(**{str(self.first): None}))

    def premultiplied(self, matrix: Tensor) -> Self | None:
        """This followed by ``it ← matrix · it``, if that costs nothing; else None.

        A vector stands for a diagonal matrix, a scalar for a multiple of the identity.
        """
        if self.last is None:
            return None
        value = getattr(self, self.last)
        return self.but(**{self.last: matrix if value is None else left_multiply(matrix, value)})

    def thinned(self) -> tuple[Sequence[int], Self] | None:
        """``(strides, rest)`` if this subsamples places by strides, and then does ``rest``."""
        return None

    def frozen(self, **changes: Any) -> Operation:
        """The same with constants (buffers) in place of all that is learned, for prediction."""
        return constant(self.but(**changes))


def is_frozen(operation: Operation) -> bool:
    """Whether an operation holds constants."""
    return "_modules" in vars(operation)


# What a module has besides what it is made of; here for all operations that are not frozen.
for _name, _value in vars(nn.Module()).items():
    setattr(Operation, _name, MappingProxyType({}) if isinstance(_value, dict) else _value)


def constant(module: Module) -> Module:
    """A module that nobody else changes, with buffers in place of its parameters."""
    if isinstance(module, Operation) and not is_frozen(module):
        attributes = dict(vars(module))
        vars(module).clear()
        nn.Module.__init__(module)
        for name, value in attributes.items():
            if name not in _OF_TRAINING:
                _set_constant(module, name, value)
    for part in module.children():
        constant(part)
        inside = () if isinstance(part, Operation) else part.modules()
        if any(getattr(each, "depends_on_batch", False) for each in inside):
            module.obstacle = BATCH_STATISTICS  # type: ignore[assignment]
    for name, parameter in list(module._parameters.items()):
        del module._parameters[name]
        _set_constant(module, name, parameter)
    return module


def _set_constant(module: nn.Module, name: str, value: Any) -> None:
    if isinstance(value, Tensor):
        module.register_buffer(name, value.detach().contiguous())
    elif isinstance(value, list) and value and all(isinstance(each, nn.Module) for each in value):
        setattr(module, name, nn.ModuleList(value))
    else:
        setattr(module, name, value)


class Plan(Operation):
    """A layer's map of the data blocks, with everything that is free of data worked out.

    A subclass defines :meth:`data`. Where its attributes are tensors, plain values and modules, it
    is written to files and exported like those of the library.

    Attributes:
        ii: the outgoing inducing block.
        kl: the KL terms of the Gram layers inside, by name.
    """

    ii: Tensor
    kl: dict[str, LayerKL]

    def __init__(self, ii: Tensor, kl: Mapping[str, LayerKL] | None = None) -> None:
        super().__init__()
        self.ii = ii
        self.kl = dict(kl or {})

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        """Map the data blocks ``it`` and ``tt``."""
        raise NotImplementedError(f"{type(self).__name__} must define data(it, tt)")

    def covariance(self, left: Blocks, right: Blocks, between: Tensor) -> Tensor:
        """Map the covariances ``G_is,js`` between images at the same place, for joint predictions.

        Independent noise, which adds to the variance of each image alone, is left out.

        Args:
            left, right: the incoming data blocks of two sets of images.
            between: the incoming covariances, ``(N1, N2, *space)``.
        """
        raise GramError(
            f"{type(self).__name__} does not say what becomes of the covariances between images;"
            " for joint predictions it must define covariance(left, right, between)"
        )

    def joint(self, left: Blocks, right: Blocks, between: Tensor) -> tuple[Blocks, Blocks, Tensor]:
        """The data blocks of two sets of images, and their covariances, all mapped."""
        return self.data(*left), self.data(*right), self.covariance(left, right, between)

    def __call__(self, gram: Gram) -> Gram:
        it, tt = self.data(gram.it, gram.tt)
        return Gram(self.ii, it, tt)


class IdentityPlan(Plan):
    """Passes the data through."""

    def data(self, it: Tensor, tt: Tensor) -> Blocks:
        return it, tt

    def covariance(self, left: Blocks, right: Blocks, between: Tensor) -> Tensor:
        return between


@contextmanager
def part(index: int) -> Iterator[None]:
    """Attribute errors inside the block to part ``index`` of a fused operation.

    :func:`convdkm.errors.located` knows the layer that each part comes from.
    """
    try:
        yield
    except ConvDKMError as error:
        error.part += index
        raise


def require_shape(what: str, made_for: Sequence[int], incoming: Sequence[int]) -> None:
    """Raise unless what a layer has for every place has the shape that a Gram asks for."""
    if tuple(made_for) != tuple(incoming):
        raise GramError(
            f"this layer has {what} of shape {tuple(made_for)}, but the incoming Gram needs"
            f" {tuple(incoming)}; were the images of another size?"
        )

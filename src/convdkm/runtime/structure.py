"""What a machine is made of, and how its layers are set: all that a record of its steps is for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
_TORCHS = frozenset(vars(nn.Module())) - {"training"}
_PARTS = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")
_DEEPEST = 4


class Structure:
    """A machine's parts, found once, and what of them may change, looked up quickly.

    Attributes:
        model: the machine.
        parameters, buffers: the machine's.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters, self.buffers = list(model.parameters()), list(model.buffers())
        # Kept: in the place of one that is gone another could be made, of the same id.
        modules = self._modules = list(model.modules())
        self._parts: list[Mapping[Any, Any]] = [
            vars(each)[part] for each in modules for part in _PARTS
        ]
        self._known = self._found()
        self._attributes = [
            (each, vars(each), tuple(name for name in vars(each) if name not in _TORCHS))
            for each in modules
        ]

    def _found(self) -> list[int]:
        return [id(each) for part in self._parts for each in part.values()]

    def is_current(self, model: nn.Module) -> bool:
        """Whether it is this machine's: layers, parameters and buffers are the same objects."""
        return self.model is model and self._found() == self._known

    def settings(self) -> tuple[Any, ...]:
        """What decides, besides tensors, what the layers do: their classes and attributes."""
        found: list[Any] = []
        for module, attributes, names in self._attributes:
            found += (type(module), len(attributes))
            for name in names:
                value = attributes.get(name, _PLAIN)
                found.append(value if type(value) in _PLAIN else fingerprint(value))
        return tuple(found)


class _Same:
    """Equal to itself alone, whatever equality means to what it holds."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def fingerprint(value: Any, depth: int = 0) -> Any:
    """Something hashable that is another when an attribute is, or what it holds.

    Tensors are followed by a record, and count as the objects that they are.
    """
    kind = type(value)
    if kind in _PLAIN or _says_what_it_equals(value):
        return value
    if depth == _DEEPEST or isinstance(value, (Tensor, type)):
        return _Same(value)

    def inside(parts: Iterable[Any]) -> Iterator[Any]:
        return (fingerprint(each, depth + 1) for each in parts)

    if isinstance(value, (list, tuple)):
        return kind, tuple(inside(value))
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(inside(value))
    if isinstance(value, dict):
        return kind, tuple(value), tuple(inside(value.values()))
    return _Same(value), *inside([getattr(value, "__dict__", None)])


def _says_what_it_equals(value: Any) -> bool:
    """Whether it is a value such as a window: equal to others, hashable, and so not to change."""
    how: Any = type(value).__hash__
    if how in (None, object.__hash__, Tensor.__hash__) or isinstance(value, (tuple, frozenset)):
        return False
    try:
        hash(value)
    except TypeError:
        return False
    return True

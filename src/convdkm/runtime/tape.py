"""A tape of the operations that a function starts on tensors.

While a :class:`Tape` is entered, it notes every operation below autograd: the forward pass and the
backward pass alike, each as a call with its arguments. What does not reach PyTorch (Python's own
control flow, shapes, constants) is done once, while recording.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from convdkm.errors import ConvDKMError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class NotRecordableError(ConvDKMError, RuntimeError):
    """A function does what cannot be played again from a tape."""


@dataclass(frozen=True)
class Slot:
    """A tensor or a number on a tape, the ``place``-th that it has seen."""

    place: int


@dataclass(frozen=True)
class Call:
    """One operation.

    Attributes:
        function: what is called.
        arguments, options: what with; slots stand for tensors and numbers.
        results: what it returns, in the same way.
        pure: whether all that it does is to return something.
        is_plain_copy: whether it returns its argument once more, laid out in the same way.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    results: Any
    pure: bool
    is_plain_copy: bool = False


_TAPE: ContextVar[Tape | None] = ContextVar("tape", default=None)


def tape_under_way() -> Tape | None:
    """The tape that is being recorded, if there is one."""
    return _TAPE.get()


def leaf(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A function that a tape notes as one operation, whatever it does inside.

    It may look at the numbers in its tensors, and raise. It has no derivative, changes none of its
    arguments, and returns a number, a tensor or a tuple of tensors, which share no memory with the
    arguments.
    """

    @wraps(function)
    def call(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        tape = _TAPE.get()
        if tape is None:
            return function(*arguments, **options)
        result: _Result = tape.note(function, arguments, options, pure=True)
        return result

    return call


class RecordedNumber:
    """A number that was read from a tensor, or worked out of such.

    It may be multiplied and added, and given to PyTorch's functions where no derivative is asked
    for. To look at its value is an error, since it will be another when the tape is played.
    """

    def __init__(self, tape: Tape, value: float) -> None:
        self.tape, self.value = tape, value

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        tape = _TAPE.get()
        if tape is None:
            raise NotRecordableError("a number of a tape is used when recording is over")
        return tape.note(func, args, kwargs or {})

    def _do(self, function: Callable[..., Any], *both: Any) -> Any:
        if not all(isinstance(each, (int, float, RecordedNumber)) for each in both):
            return NotImplemented
        return self.tape.note(function, both, {}, pure=True)

    def __add__(self, other: Any) -> Any:
        return self._do(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return self._do(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return self._do(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._do(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return self._do(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._do(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._do(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._do(operator.truediv, other, self)

    def __neg__(self) -> Any:
        return self._do(operator.neg, self)

    def _looked_at(self, *_: object) -> NoReturn:
        raise NotRecordableError("what it does depends on a number that it reads from a tensor")

    __float__ = __bool__ = __int__ = __index__ = __hash__ = _looked_at
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _looked_at


class Tape(TorchDispatchMode):
    """Notes what is done while it is entered.

    Args:
        inputs: tensors that will be others, of the same shapes, when the tape is played.

    Attributes:
        calls: the operations, in order.
        constants: tensors that were there before, with their slots.
        inputs: slots of the inputs.
        sizes: numbers in every tensor.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.constants: dict[Slot, Tensor] = {}
        self.sizes: dict[Slot, int] = {}
        self._slots = WeakTensorKeyDictionary()
        self._numbers: dict[int, tuple[Slot, RecordedNumber]] = {}
        self._count = 0
        self.inputs = [self._added(tensor) for tensor in inputs]
        self._token: Any = None

    def __enter__(self) -> Tape:
        self._token = _TAPE.set(self)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        _TAPE.reset(self._token)

    def slot(self, tensor: Tensor) -> Slot:
        """Of a tensor; one that is not known is a constant."""
        known: Slot | None = self._slots.get(tensor)
        if known is None:
            known = self._added(tensor)
            self.constants[known] = tensor
        return known

    def number(self, tensor: Tensor) -> RecordedNumber:
        """The number in a tensor of one element, which will be read whenever the tape is played."""
        result: RecordedNumber = self.note(Tensor.item, (tensor,), {}, pure=True)
        return result

    def note(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        *,
        pure: bool = False,
    ) -> Any:
        """Call a function, note the call, and nothing of what is done inside."""
        if torch.is_grad_enabled() and _needs_gradient((*arguments, *options.values())):
            raise NotRecordableError(f"{function} is asked for a derivative")
        with self.unseen():
            result = function(
                *mapped(_value, arguments),
                **{name: _value(each) for name, each in options.items()},
            )
        if isinstance(result, float):
            result = RecordedNumber(self, result)
        self.add(function, arguments, options, result, pure=pure)
        return result

    def unseen(self) -> AbstractContextManager[object]:
        """Inside the block, nothing is noted."""
        unseen: AbstractContextManager[object] = _disable_current_modes()
        return unseen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise NotRecordableError("what it does depends on a number that it reads from a tensor")
        result = func(*args, **kwargs)
        self.add(func, args, kwargs, result, pure=not func._schema.is_mutable)
        return result

    def add(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        result: Any,
        *,
        pure: bool,
    ) -> None:
        """Note a call that was made."""
        given = self._encoded(arguments)
        named = {name: self._encoded(value) for name, value in options.items()}
        copies = function is torch.ops.aten.clone.default and _is_laid_out_as(result, arguments[0])
        self.calls.append(Call(function, given, named, self._results(result), pure, copies))

    def _added(self, value: Tensor | RecordedNumber) -> Slot:
        slot = Slot(self._count)
        self._count += 1
        if isinstance(value, RecordedNumber):
            self._numbers[id(value)] = (slot, value)
        else:
            self._slots[value] = slot
            self.sizes[slot] = value.numel()
        return slot

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.slot(value)
        if isinstance(value, RecordedNumber):
            return self._numbers[id(value)][0]
        if isinstance(value, torch.Generator):
            raise NotRecordableError("it draws from a random generator of its own")
        return mapped(self._encoded, value)

    def _results(self, value: Any) -> Any:
        if isinstance(value, RecordedNumber):
            return self._added(value)
        if isinstance(value, Tensor):
            return self._slots.get(value) or self._added(value)
        return mapped(self._results, value)


def _value(argument: Any) -> Any:
    return argument.value if isinstance(argument, RecordedNumber) else mapped(_value, argument)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """A tuple or list (a named one, too) with a function applied to each; the rest as it is."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(function, value))
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return type(value)(map(function, value))
    return value


def _is_laid_out_as(copy: Tensor, original: Tensor) -> bool:
    """Whether the original could stand for its copy: its numbers lie apart, in the same order."""
    return copy.stride() == original.stride()


def _needs_gradient(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.requires_grad
    return isinstance(value, (tuple, list)) and any(map(_needs_gradient, value))


def slots_of(value: Any) -> list[Slot]:
    """The slots in an argument or result, in order."""
    if isinstance(value, Slot):
        return [value]
    if isinstance(value, (tuple, list)):
        return [slot for each in value for slot in slots_of(each)]
    if isinstance(value, dict):
        return [slot for each in value.values() for slot in slots_of(each)]
    return []

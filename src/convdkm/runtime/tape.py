"""A tape of the operations that a function starts on tensors.

While a :class:`Tape` is entered, it notes every operation below autograd: the forward pass and the
backward pass alike, each as a call with its arguments. What does not reach PyTorch (Python's own
control flow, shapes, constants) is done once, while recording.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from convdkm.errors import ConvDKMError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Kind = TypeVar("_Kind")


class NotRecordableError(ConvDKMError, RuntimeError):
    """A function does what cannot be played again from a tape."""


class Slot(str):
    """The name of a tensor or a number on a tape."""

    __slots__ = ()
    __repr__ = str.__str__


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

    @cached_property
    def given(self) -> list[Slot]:
        """The slots among arguments and options, in order."""
        return _found(Slot, (self.arguments, self.options))

    @cached_property
    def made(self) -> list[Slot]:
        """The slots among the results, in order."""
        return _found(Slot, self.results)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Nested tuples (also named), lists and dictionaries, with a function of what they hold."""
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        inside = [mapped(function, each) for each in value]
        return type(value)(*inside) if hasattr(value, "_fields") else type(value)(inside)
    if isinstance(value, dict):
        return {name: mapped(function, each) for name, each in value.items()}
    return function(value)


def _found(kind: type[_Kind], value: Any) -> list[_Kind]:
    """All of a kind in tuples, lists and dictionaries, in order."""
    found: list[_Kind] = []
    mapped(lambda each: found.append(each) if isinstance(each, kind) else None, value)
    return found


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


def _arithmetic(function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An operator's method of recorded numbers, and the one for a number on the right."""

    def noted(tape: Tape, *operands: Any) -> Any:
        if not all(isinstance(each, (int, float, RecordedNumber)) for each in operands):
            return NotImplemented
        return tape.note(function, operands, {}, pure=True)

    return (
        lambda self, *other: noted(self.tape, self, *other),
        lambda self, other: noted(self.tape, other, self),
    )


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

    __add__, __radd__ = _arithmetic(operator.add)
    __sub__, __rsub__ = _arithmetic(operator.sub)
    __mul__, __rmul__ = _arithmetic(operator.mul)
    __truediv__, __rtruediv__ = _arithmetic(operator.truediv)
    __neg__ = _arithmetic(operator.neg)[0]

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
        self._count = itertools.count()
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
        tensors = _found(Tensor, (arguments, options))
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise NotRecordableError(f"{function} is asked for a derivative")
        with self.unseen():
            arguments_now, options_now = mapped(_value, (arguments, options))
            result = function(*arguments_now, **options_now)
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
        given, named = mapped(self._argument, (arguments, options))
        copies = function is torch.ops.aten.clone.default and (
            result.stride() == arguments[0].stride()
        )
        made = mapped(self._result, result)
        self.calls.append(Call(function, given, named, made, pure, copies))

    def _added(self, value: Tensor | RecordedNumber) -> Slot:
        slot = Slot(f"t{next(self._count)}")
        if isinstance(value, RecordedNumber):
            self._numbers[id(value)] = (slot, value)
        else:
            self._slots[value] = slot
            self.sizes[slot] = value.numel()
        return slot

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Generator):
            raise NotRecordableError("it draws from a random generator of its own")
        if isinstance(value, RecordedNumber):
            return self._numbers[id(value)][0]
        return self.slot(value) if isinstance(value, Tensor) else value

    def _result(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._slots.get(value) or self._added(value)
        return self._added(value) if isinstance(value, RecordedNumber) else value


def _value(argument: Any) -> Any:
    return argument.value if isinstance(argument, RecordedNumber) else argument

"""Reading pickles of plain data without trusting them.

A pickle is a program, and the stock reader runs it. Here every name that it may ask for stands for
a harmless object of this module: NumPy itself is never called.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from math import prod
from typing import Any

import numpy as np

_TYPES = frozenset({"u1", "i1", "i2", "i4", "i8", "u2", "u4", "u8", "f4", "f8"})
_NAMES = {
    ("numpy", "dtype"): "dtype",
    ("numpy", "ndarray"): "ndarray",
    ("numpy.core.multiarray", "_reconstruct"): "array",
    ("numpy._core.multiarray", "_reconstruct"): "array",
    ("_codecs", "encode"): "bytes",  # how Python 3 writes bytes in protocol 2
}

_REMEMBER = ("PUT", "BINPUT", "LONG_BINPUT")
MOST_STEPS = 5_000_000
"""Steps of a pickle, each of which can make an object; a file of CIFAR-10 has some 50,000."""


def unpickle(content: bytes) -> Any:
    """The arrays, lists, dictionaries, numbers and strings of a pickle; anything else is an error.

    Strings of Python 2 are returned as bytes.

    Raises:
        pickle.UnpicklingError: the pickle asks for more, or is damaged.
    """
    try:
        _check_steps(content)
        return _finished(_PlainUnpickler(io.BytesIO(content), encoding="bytes").load())
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        reason = f"{type(error).__name__}: {error}"
        raise pickle.UnpicklingError(f"the pickle is damaged ({reason})") from error


def _check_steps(content: bytes) -> None:
    """Raise if reading would take far more memory than the pickle has bytes.

    The reader makes room for the largest number that a value is remembered by, and for the length
    that a value claims, before it looks for more: a few bytes could ask for gigabytes. That lengths
    are true is checked by :func:`pickletools.genops`.
    """
    for count, (step, argument, _) in enumerate(pickletools.genops(content), 1):
        if step.name in _REMEMBER and not 0 <= int(argument or 0) <= count:
            raise pickle.UnpicklingError(f"value {count} of the pickle has the number {argument}")
        if count > MOST_STEPS:
            raise pickle.UnpicklingError(f"the pickle has more than {MOST_STEPS:,} steps")


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"the file asks for {module}.{name}, which is not allowed")
        return _Maker(_NAMES[module, name])


class _Maker:
    """Stands for a function that a pickle may call."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(self, *arguments: Any) -> Any:
        if self.what == "array":
            return _PickledArray()
        if self.what == "dtype":
            return _PickledType(arguments[0])
        if self.what == "bytes":
            text, encoding = arguments
            if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
                raise pickle.UnpicklingError("the file asks for an encoding other than latin1")
            return text.encode("latin1")
        raise pickle.UnpicklingError(f"the file calls {self.what}, which is not allowed")


class _PickledType:
    """The type of the entries of an array."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any) -> None:
        if not isinstance(code, (bytes, str)):
            raise pickle.UnpicklingError("the type of an array is not named")
        self.code = code.decode("ascii") if isinstance(code, bytes) else code
        if self.code not in _TYPES:
            raise pickle.UnpicklingError(f"arrays of type {self.code!r} are not allowed")
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("|", "<", ">", "="):
            raise pickle.UnpicklingError("the byte order of an array is not known")
        self.order = order


class _PickledArray:
    """An array on its way from its bytes."""

    __slots__ = ("array",)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, columns_first, content = state
        if not isinstance(kind, _PickledType) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("arrays of Python objects are not allowed")
        if not isinstance(shape, tuple) or not all(type(size) is int for size in shape):
            raise pickle.UnpicklingError("the shape of an array is not made of integers")
        dtype = np.dtype(kind.order + kind.code)
        if prod(shape) * dtype.itemsize != len(content):
            raise pickle.UnpicklingError(
                f"an array of shape {tuple(shape)} does not fit its {len(content)} bytes"
            )
        order: Any = "F" if columns_first else "C"
        self.array = np.frombuffer(content, dtype).reshape(shape, order=order)


def _finished(value: Any, *, inside: bool = True) -> Any:
    """The value with real arrays in the place of the stand-ins, down to one level of nesting."""
    if isinstance(value, _PickledArray):
        return value.array
    if inside and isinstance(value, dict):
        return {key: _finished(entry, inside=False) for key, entry in value.items()}
    if inside and isinstance(value, list):
        return [_finished(entry, inside=False) for entry in value]
    return value

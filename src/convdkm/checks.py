"""Checks of options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from convdkm.errors import InvalidInputError


def check_choice(name: str, value: object, kind: object) -> None:
    """Raise unless ``value`` is one of the strings of a ``Literal`` type."""
    choices = get_args(kind)
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise InvalidInputError(f"{name} must be one of {listed}; got {value!r}")


def check_positive(**values: object) -> None:
    """Raise unless every value is a positive integer; the names are those of the options."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidInputError(f"{name} must be a positive integer, got {value!r}")


def check_positive_number(**values: object) -> None:
    """Raise unless every value is a finite number above zero."""
    for name, value in values.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:  # type: ignore[operator]
            raise InvalidInputError(f"{name} must be a positive, finite number, got {value!r}")


def one_per_layer(name: str, value: float | Sequence[float], count: int) -> tuple[float, ...]:
    """An option given as one number for all layers, or as one for each of ``count``."""
    values = (value,) * count if isinstance(value, (int, float)) else tuple(value)
    if len(values) != count:
        raise InvalidInputError(
            f"{name} must be one number or one for each of {count} layers, got {len(values)}"
        )
    return values


def wrong_kinds(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> list[str]:
    """The names of values, read from JSON, that are not of their kind.

    A kind is a type, a literal, or lists, dictionaries or a choice of such; a value that is not
    there passes.
    """
    return [name for name in kinds if name in values and not _is_a(values[name], kinds[name])]


def _is_a(value: object, kind: Any) -> bool:
    """Whether a value is of a kind; a whole number is a number, a flag is none."""
    inside = get_args(kind)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_is_a(each, inside[0]) for each in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(_is_a(each, inside[1]) for each in value.values())
    if get_origin(kind) is Literal:
        return value in inside
    if inside:
        return any(_is_a(value, each) for each in inside)
    return type(value) is kind or (kind is float and type(value) is int)

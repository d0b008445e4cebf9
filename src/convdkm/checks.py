"""Checks of options."""

from __future__ import annotations

from typing import get_args

from convdkm.errors import InvalidInputError


def check_choice(name: str, value: object, kind: object) -> None:
    """Raise unless ``value`` is one of the strings of a ``Literal`` type."""
    choices = get_args(kind)
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise InvalidInputError(f"{name} must be one of {listed}; got {value!r}")

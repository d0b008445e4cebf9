"""Command-line options made from the configuration: one flag for every field."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from convdkm.config import SECTION, SECTIONS

LONGEST = 60
"""Of a list of choices that stands for a value in the help; longer ones are part of its text."""
PANELS = {"data": "Data", "model": "Machine", "training": "Training"}


def takes_configuration(
    command: Callable[..., None], *, without: tuple[str, ...] = ()
) -> Callable[..., None]:
    """Give a command a flag for every field of the configuration but those in ``without``.

    The command receives those that the user gave as its keyword ``options``, as text where they
    are not switches; the configuration checks them.
    """
    names = [name for name in SECTION if name not in without]

    def wrapper(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in names}
        options = {n: _number_if_choice(n, v) for n, v in given.items() if v is not None}
        command(**arguments, options=options)

    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.name != "options"]
    extra = [_parameter(name) for name in names]
    wrapper.__signature__ = inspect.Signature([*own, *extra])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in (*own, *extra)}
    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    return wrapper


def choices(annotation: Any) -> tuple[Any, ...]:
    """The values of a field that takes one of a few; none for others."""
    return tuple(
        value
        for part in _parts(annotation)
        if get_origin(part) is Literal
        for value in get_args(part)
    )


def metavar(annotation: Any) -> str:
    """What stands for a value in the help: its choices, or its kind."""
    if found := choices(annotation):
        listed = "|".join(map(str, found))
        return listed if len(listed) <= LONGEST else "NAME"
    kinds = {int: "N", float: "X", str: "TEXT"}
    shown = "VALUE"
    for part in _parts(annotation):
        if get_origin(part) is tuple:
            return f"{metavar(get_args(part)[0])},…"
        shown = kinds.get(part, shown)
    return shown


def _parts(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows, without None and remarks."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _parts(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _parts(part)
    elif annotation is not type(None):
        yield annotation


def _number_if_choice(name: str, value: Any) -> Any:
    """Text as the number it stands for, where a field takes one of a few numbers."""
    annotation = SECTIONS[SECTION[name]].model_fields[name].annotation
    return next((each for each in choices(annotation) if str(each) == value), value)


def _parameter(name: str) -> inspect.Parameter:
    section = SECTION[name]
    field = SECTIONS[section].model_fields[name]
    kind = bool if field.annotation is bool else str
    default, shown = _shown(field.default), metavar(field.annotation)
    listed = f": {', '.join(choices(field.annotation))}" if shown == "NAME" else ""
    option = typer.Option(
        help=f"{field.description}{listed}{f' ({default})' if default else ''}",
        metavar=None if kind is bool else shown,
        rich_help_panel=PANELS[section],
        show_default=False,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _shown(default: Any) -> str:
    if default is None:
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)

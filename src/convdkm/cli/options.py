"""Command-line options made from the configuration: one flag for every field."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from convdkm.config import SECTION, SECTIONS

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
        options = {name: value for name, value in given.items() if value is not None}
        command(**arguments, options=options)

    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.name != "options"]
    extra = [_parameter(name) for name in names]
    wrapper.__signature__ = inspect.Signature([*own, *extra])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in (*own, *extra)}
    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    return wrapper


def _parameter(name: str) -> inspect.Parameter:
    section = SECTION[name]
    field = SECTIONS[section].model_fields[name]
    kind = bool if field.annotation is bool else str
    shown = metavar(field.annotation)
    choices = f": {shown.replace('|', ', ')}" if "|" in shown else ""
    default = _shown(field.default)
    option = typer.Option(
        help=f"{field.description}{choices}{f' ({default})' if default else ''}",
        metavar=None if kind is bool else ("NAME" if choices else shown),
        rich_help_panel=PANELS[section],
        show_default=False,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def metavar(annotation: Any) -> str:
    """What stands for a value in the help: its choices, or its kind."""
    origin = get_origin(annotation)
    if origin is Literal:
        return "|".join(map(str, get_args(annotation)))
    if origin is Annotated:
        return metavar(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        parts = [metavar(part) for part in get_args(annotation) if part is not type(None)]
        return "|".join(dict.fromkeys(parts))
    if origin is tuple:
        inner = metavar(get_args(annotation)[0])
        return f"{inner},…"
    return {int: "N", float: "X", str: "TEXT"}.get(annotation, "VALUE")


def _shown(default: Any) -> str:
    if default is None:
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)

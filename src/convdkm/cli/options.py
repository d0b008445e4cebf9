"""Command-line options made from the configuration: one flag for every field."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
import typer.main

from convdkm.cli.help import default_text
from convdkm.config import SECTION, SECTIONS

LONGEST = 60
"""Of a list of choices that stands for a value in the help; longer ones are part of its text."""
PANELS = {"data": "Data", "model": "Machine", "training": "Training"}
SHORTER = {"start_from": "--from"}
"""Other names of flags."""
FIELDS = tuple(name for name in SECTION if name != "dataset")
"""Fields that are flags; the data set is an argument."""


@functools.cache
def configuration_flags() -> tuple[Any, ...]:
    """A flag for every field, which takes text where it is not a switch: the fields check it."""

    def flags(**given: Any) -> None: ...

    parameters = [_parameter(name) for name in FIELDS]
    flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flags.__annotations__ = {each.name: each.annotation for each in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(flags)
    return tuple(typer.main.get_command(app).params)


def choices(annotation: Any) -> tuple[Any, ...]:
    """The values of a field that takes one of a few; none for others."""
    literals = [part for part in _parts(annotation) if get_origin(part) is Literal]
    return tuple(value for part in literals for value in get_args(part))


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


def _parameter(name: str) -> inspect.Parameter:
    section = SECTION[name]
    field = SECTIONS[section].model_fields[name]
    kind = bool if field.annotation is bool else str
    shown = metavar(field.annotation)
    listed = f": {', '.join(choices(field.annotation))}" if shown == "NAME" else ""
    names = [f"--{name.replace('_', '-')}", SHORTER[name]] if name in SHORTER else []
    option = typer.Option(
        *names,
        help=f"{field.description}{listed}",
        metavar=None if kind is bool else shown,
        rich_help_panel=PANELS[section],
        show_default=default_text(field.default),
    )
    named, annotation = inspect.Parameter.KEYWORD_ONLY, Annotated[kind | None, option]
    return inspect.Parameter(name, named, default=None, annotation=annotation)

"""Help pages: plain text, one section for each group of options, readable at 80 columns."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

FIRST_COLUMN = 24


class Command(TyperCommand):
    """A command whose help lists its options by their groups."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *_arguments(self.get_params(ctx))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _format_options(self.get_params(ctx), formatter)


class Group(TyperGroup):
    """Commands under one name, with help of the same look."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["COMMAND …"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, _first_sentence(each.help)) for name, each in commands if each is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        _format_options(self.get_params(ctx), formatter)


def help_if_alone(context: typer.Context) -> None:
    """Show the help of a group that is called without a command."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def default_text(default: Any) -> str:
    """A default as users write it; empty for None."""
    if default is None:
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def _format_options(parameters: list[Any], formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in parameters:
        argument = parameter.param_type_name == "argument"
        usual = "Arguments" if argument else "Options"
        group = getattr(parameter, "rich_help_panel", None) or usual
        entry = (parameter.metavar, parameter.help or "") if argument else _option(parameter)
        sections.setdefault(group, []).append(entry)
    for title, entries in sections.items():
        with formatter.section(title):
            formatter.write_dl(entries, col_max=FIRST_COLUMN)


def _arguments(parameters: list[Any]) -> list[str]:
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    return [each.metavar if each.required else f"[{each.metavar}]" for each in arguments]


def _option(parameter: Any) -> tuple[str, str]:
    """Names and help of an option, with its default unless it is a switch that is off."""
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        names += f", {parameter.secondary_opts[0]}"
    if not parameter.is_flag and parameter.metavar:
        names += f" {parameter.metavar}"
    shown, default = parameter.show_default, parameter.default
    default = shown if isinstance(shown, str) else "" if default is False else default_text(default)
    text = "show this help" if parameter.name == "help" else parameter.help or ""
    return names, f"{text} (default: {default})" if default else text


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split()).rstrip(".")

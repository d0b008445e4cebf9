"""The program: its commands, each of which has a file of its own.

These files import nothing slow until their command is called, so that help comes at once.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from convdkm import __version__
from convdkm.cli.bench import bench
from convdkm.cli.compare import compare
from convdkm.cli.data import data, fetch_sets, list_sets, verify_sets
from convdkm.cli.evaluate import evaluate
from convdkm.cli.export import export
from convdkm.cli.help import Command, Group, help_if_alone
from convdkm.cli.predict import predict
from convdkm.cli.presets import presets
from convdkm.cli.pretrained import pretrained
from convdkm.cli.report import report
from convdkm.cli.resume import resume
from convdkm.cli.show import show
from convdkm.cli.sweep import sweep
from convdkm.cli.tables import tables
from convdkm.cli.train import train
from convdkm.cli.verify import verify


class ConfiguringCommand(Command):
    """A command with a flag for every field of the configuration, which takes long to import.

    The flags are made when the command is called or its own help is asked for. Those that the user
    gave are the context's ``obj``, by the names of the fields.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        from convdkm.cli.options import configuration_flags

        return [*super().get_params(ctx), *configuration_flags()]

    def invoke(self, ctx: Any) -> Any:
        from convdkm.cli.options import FIELDS

        given = {name: ctx.params.pop(name) for name in FIELDS}
        ctx.obj = {name: value for name, value in given.items() if value is not None}
        return super().invoke(ctx)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"convdkm {__version__}")
        raise typer.Exit


def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Train and use convolutional deep kernel machines.

    To begin: convdkm train. For help on a command: convdkm train --help.
    """
    del version
    help_if_alone(context)


def build_app() -> typer.Typer:
    """The program."""
    app = _typer()
    app.callback(cls=Group, invoke_without_command=True)(root)
    app.command(cls=ConfiguringCommand)(train)
    using = (resume, evaluate, predict, export, show, report, verify, presets, pretrained, bench)
    for command in (*using, sweep, tables, compare):
        app.command(cls=Command)(command)
    sets = _typer()
    sets.callback(cls=Group, invoke_without_command=True)(data)
    sets.command("list", cls=Command)(list_sets)
    sets.command("verify", cls=Command)(verify_sets)
    sets.command("fetch", cls=Command)(fetch_sets)
    app.add_typer(sets, name="data")
    return app


def _typer() -> typer.Typer:
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

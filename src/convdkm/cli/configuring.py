"""Commands that take the configuration as flags."""

from __future__ import annotations

from typing import Any

from convdkm.cli.help import Command


class ConfiguringCommand(Command):
    """A command with a flag for every field of the configuration, which takes long to import.

    The flags are made when the command is called or its own help is asked for. Those that the user
    gave are the context's ``obj``, by the names of the fields.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        from convdkm.cli.options import configuration_flags

        return [*super().get_params(ctx), *configuration_flags()]

    def invoke(self, ctx: Any) -> Any:
        from convdkm.cli.options import take_given

        ctx.obj = take_given(ctx.params)
        return super().invoke(ctx)

"""``convdkm presets``."""

from __future__ import annotations

import textwrap
from typing import Annotated

from convdkm.cli.arguments import argument, option
from convdkm.cli.output import console, plain_table
from convdkm.data.registry import checked_dataset


def presets(
    name: Annotated[str | None, argument("NAME", "print the settings of this preset")] = None,
    dataset: Annotated[str, option("NAME", "data set that the settings are for")] = "cifar10",
) -> None:
    """List the presets, or print one.

    With a name, prints all of its settings as YAML, which can be edited and given to convdkm train
    --config.
    """
    from convdkm.presets import names, preset

    if name is not None:
        chosen = preset(name)
        dataset = checked_dataset(dataset)
        title = f"Preset {name} for {dataset}. {chosen.description}"
        print(textwrap.fill(title, 80, initial_indent="# ", subsequent_indent="# "))
        print(chosen.config(dataset).to_yaml(), end="")
        return
    rows = [(each, textwrap.fill(preset(each).description, 60)) for each in names()]
    console().print(plain_table("preset", "what it is", rows=rows))

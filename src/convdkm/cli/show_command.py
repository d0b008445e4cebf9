"""The options of ``convdkm show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from convdkm.cli.arguments import CheckpointName, DataDir, MovedData

_START = "Of a data set"


def show(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN|DATASET", help="folder of a run; or a data set, for a machine at its start"
        ),
    ],
    *,
    checkpoint: CheckpointName = "last",
    data: MovedData = None,
    no_data: Annotated[
        bool, typer.Option("--no-data", help="do not look at some training images as well")
    ] = False,
    data_dir: DataDir = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="settings of the machine (quick for the digits, else paper)",
            rich_help_panel=_START,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="YAML file of options, which override it", rich_help_panel=_START
        ),
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="any option of convdkm train, such as inducing=16,32,64; may be repeated",
            rich_help_panel=_START,
        ),
    ] = None,
) -> None:
    """Show the machine of a run, or one at its start, layer by layer.

    P_i is the number of inducing points, space the places of the feature map, ν the weight of the
    KL, which is in nats. On some training images: explained is the share of their variance that the
    inducing points explain; spread is how much correlations with inducing points differ from image
    to image. Gradient is the size of the objective's gradient beside that of the parameters.

    Of a run, the gradients are those noted in training. Of a data set, the machine is that with
    which training would begin, and the gradients are those of the first step.
    """
    from convdkm.cli.show import show_subject

    show_subject(
        subject,
        checkpoint=checkpoint,
        data=data,
        no_data=no_data,
        data_dir=data_dir,
        preset=preset,
        config=config,
        others=others or [],
    )

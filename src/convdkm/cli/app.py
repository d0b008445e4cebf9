"""The commands. What is slow to import is imported by the command that needs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="folder of the run")]
DataDir = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER", help="where data sets are (CONVDKM_DATA, or a folder of your own)"
    ),
]
Device = Annotated[str | None, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1, mps, …")]
CheckpointName = Annotated[
    str, typer.Option("--checkpoint", metavar="last|best|previous", help="which checkpoint to use")
]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="only warnings, and the end")]


def _version(wanted: bool) -> None:
    if wanted:
        from convdkm import __version__

        typer.echo(f"convdkm {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Take the options that come before a command."""
    del version


def train(
    dataset: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATASET]",
            help="digits, mnist, fashion-mnist, cifar10, cifar100, a folder with a sub-folder of"
            " images for each class, or an .npz file",
            show_default="digits",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="settings to start from: paper, paper-benchmark, published, quick"
            " (quick for the digits, else paper)",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML file of options; flags override it")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="folder of the run (runs/…)"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace a run that is in the folder")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="only warnings, and the end")
    ] = False,
    *,
    options: dict[str, Any],
) -> None:
    """Train a machine. [dim]convdkm train[/dim] alone trains on embedded handwritten digits.

    Defaults shown are the paper's; presets change some of them. Lists are written 16,32,64.

    Ctrl-C stops after the step under way and saves; [dim]convdkm resume[/dim] goes on.
    """
    from convdkm.cli.train import train_run

    train_run(dataset, preset, config, options, output=output, overwrite=overwrite, quiet=quiet)


def resume(
    run: RunFolder,
    data_dir: DataDir = None,
    device: Device = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", help="train for so many epochs in all")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="only warnings, and the end")
    ] = False,
) -> None:
    """Go on with a run that was stopped or killed, from its last checkpoint."""
    from convdkm.cli.train import resume_run

    given = {"data_dir": data_dir, "device": device, "epochs": epochs}
    options = {name: value for name, value in given.items() if value is not None}
    resume_run(run, options, quiet=quiet)


def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None, typer.Option(metavar="DATASET", help="evaluate on another set or folder")
    ] = None,
    data_dir: DataDir = None,
    checkpoint: CheckpointName = "last",
    train: Annotated[bool, typer.Option("--train", help="on the training images as well")] = False,
    device: Device = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Accuracy, log-likelihood and calibration of a run on its test images."""
    from convdkm.cli.evaluate import evaluate_run

    evaluate_run(
        run,
        data=data,
        data_dir=data_dir,
        checkpoint=checkpoint,
        train=train,
        device=device,
        as_json=json,
    )


def predict(
    run: RunFolder,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE…|FOLDER", help="image files, or folders of them")
    ],
    format: Annotated[
        str, typer.Option("--format", "-f", metavar="table|csv|json", help="how to print")
    ] = "table",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="write there instead")
    ] = None,
    resize: Annotated[
        bool, typer.Option("--resize", help="resize images of other sizes to the model's")
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="leave out images that cannot be read")
    ] = False,
    checkpoint: CheckpointName = "last",
    device: Device = None,
) -> None:
    """Class, probability, entropy and mutual information of images."""
    from convdkm.cli.predict import predict_images

    predict_images(
        run,
        images,
        form=format,
        output=output,
        resize=resize,
        skip_bad=skip_bad,
        checkpoint=checkpoint,
        device=device,
    )


def show(run: RunFolder, checkpoint: CheckpointName = "last") -> None:
    """The machine of a run: every layer's inducing points, space, parameters and KL."""
    from convdkm.cli.show import show_run

    show_run(run, checkpoint)


def presets(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="print all settings of this preset")
    ] = None,
    dataset: Annotated[str, typer.Option(metavar="NAME", help="as they are for a data set")] = (
        "cifar10"
    ),
) -> None:
    """The named settings, or all values of one of them as YAML (for --config)."""
    from convdkm.cli.show import show_presets

    show_presets(name, dataset)


def data_list(data_dir: DataDir = None) -> None:
    """The data sets known by name, and where they are on this machine."""
    from convdkm.cli.data import list_sets

    list_sets(data_dir)


def data_verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME…]", help="all that are there by default")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Read data sets whole, and check their files, shapes and labels."""
    from convdkm.cli.data import verify_sets

    verify_sets(names or [], data_dir)


def data_fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="data sets to download")],
    data_dir: DataDir = None,
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="download from there instead")
    ] = None,
) -> None:
    """Download data sets from their official addresses; goes on with a broken download."""
    from convdkm.cli.data import fetch_sets

    fetch_sets(names, data_dir, mirror)


def build_app(*, options: bool = True) -> typer.Typer:
    """The program.

    Args:
        options: give ``train`` its options. They come from the configuration, which takes longer to
            import than all the rest; the other commands do without.
    """
    app = typer.Typer(
        name="convdkm",
        help="Convolutional deep kernel machines: train, evaluate, predict.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(root)
    app.command()(with_options(train) if options else without_options(train))
    commands: list[Callable[..., None]] = [resume, evaluate, predict, show, presets]
    for command in commands:
        app.command()(command)
    data = typer.Typer(help="Data sets: list, verify, fetch.", no_args_is_help=True)
    data.command("list")(data_list)
    data.command("verify")(data_verify)
    data.command("fetch")(data_fetch)
    app.add_typer(data, name="data")
    return app


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for every field of the configuration."""
    from convdkm.cli.options import takes_configuration

    return takes_configuration(command, without=("dataset",))


def without_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command's name and help alone."""

    def listed() -> None: ...

    listed.__name__, listed.__doc__ = command.__name__, command.__doc__
    return listed

"""The commands. What is slow to import is imported by the command that needs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from convdkm.cli.arguments import CheckpointName, DataDir, Device, MovedData, Quiet, RunFolder
from convdkm.cli.compare import compare
from convdkm.cli.help import Command, Group
from convdkm.cli.report_command import report
from convdkm.cli.show_command import show
from convdkm.cli.sweep import sweep
from convdkm.cli.tables import tables
from convdkm.cli.verify import verify


def _version(wanted: bool) -> None:
    if wanted:
        from convdkm import __version__

        typer.echo(f"convdkm {__version__}")
        raise typer.Exit


def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Convolutional deep kernel machines: train, evaluate, predict.

    A first run: convdkm train. Help on a command: convdkm train --help.
    """
    del version
    _help_if_alone(context)


def data(context: typer.Context) -> None:
    """List, verify and fetch data sets."""
    _help_if_alone(context)


def _help_if_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def train(
    dataset: Annotated[
        str | None,
        typer.Argument(
            metavar="DATASET",
            help="digits, mnist, fashion-mnist, cifar10, cifar100, a folder with a sub-folder of"
            " images for each class, or an .npz file (digits)",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="settings to start from: paper, paper-benchmark, published, fast or quick (quick"
            " for the digits, else paper)",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML file of options; flags override it")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="folder of the run (a new one in runs/)"
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace a run that is in the folder")
    ] = False,
    quiet: Quiet = False,
    *,
    options: dict[str, Any],
) -> None:
    """Train a machine.

    Without a data set, on the handwritten digits that come with the program. Settings come from a
    preset, then from a file, then from options; each overrides the one before. The defaults shown
    are the paper's, and presets change some of them. Lists are written 16,32,64.

    Ctrl-C saves and stops after the step under way; convdkm resume goes on. The last line printed
    is the folder of the run.
    """
    from convdkm.cli.train import train_run

    train_run(dataset, preset, config, options, output=output, overwrite=overwrite, quiet=quiet)


def resume(
    run: RunFolder,
    data: MovedData = None,
    data_dir: DataDir = None,
    device: Device = None,
    epochs: Annotated[
        str | None, typer.Option(metavar="N", help="epochs in all, where they should be more")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that was stopped.

    It goes on from its last checkpoint, and ends with the same figures as if it had never been
    stopped. Its images have to be as they were. The last line printed is the folder of the run.
    """
    from convdkm.cli.train import resume_run

    given = {"data_dir": data_dir, "device": device, "epochs": epochs}
    options = {name: value for name, value in given.items() if value is not None}
    resume_run(run, options, data=data, quiet=quiet)


def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATASET",
            help="another data set of the same classes; or where the images of the run are, if they"
            " have moved",
        ),
    ] = None,
    data_dir: DataDir = None,
    checkpoint: CheckpointName = "last",
    train: Annotated[bool, typer.Option("--train", help="of the training images as well")] = False,
    device: Device = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Print accuracy, log-likelihood and calibration.

    On the test images of the run, by its last checkpoint. Of another data set, on its test part, or
    on all of it if it has none; images that the run has seen in training are left out.
    """
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
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="folder of the run, or a .safetensors of export")
    ],
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE|FOLDER…", help="image files, or folders of them")
    ],
    format: Annotated[
        str | None,
        typer.Option("--format", "-f", metavar="NAME", help="table, csv or json (table)"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="write to a file; its ending, .csv or .json, is the format",
        ),
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
    """Predict the classes of images.

    With the probability of the class, the entropy of the prediction (all of its uncertainty) and
    the mutual information (the part that more data could remove), both in nats.

    Any number of images: rows are written as they come. With -o, a command that was stopped goes on
    after them when it is given again.
    """
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


def export(
    run: RunFolder,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="to write: .onnx, .pt2 or .safetensors")
    ],
    checkpoint: CheckpointName = "last",
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="running averages for statistics of the batch, an integral for samples",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="replace a file that is there")] = False,
) -> None:
    """Write the machine of a run to one file.

    For other programs (.onnx), for PyTorch without this one (.pt2), or for convdkm.load_predictor
    and convdkm predict (.safetensors). It takes images with values from 0 to 1, in batches of any
    size, and gives the mean and the variance of the functions and the log-probabilities.
    """
    from convdkm.cli.export import export_run

    export_run(run, file, checkpoint=checkpoint, deterministic=deterministic, force=force)


def presets(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="print all settings of this preset")
    ] = None,
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="as they are for this data set (cifar10)")
    ] = "cifar10",
) -> None:
    """List the presets, or print one.

    With a name, all of its values as YAML, which can be edited and used by convdkm train --config.
    """
    from convdkm.cli.show import show_presets

    show_presets(name, dataset)


def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="one size of machine, in a few minutes")
    ] = False,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="write all results to a file")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write the tables to a file")
    ] = None,
    widths: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N,N,N",
            help="inducing points of the three stages; may be given more than once (16,32,64 if"
            " quick, else also 32,64,128 and 64,128,256)",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(metavar="N", help="images of a batch (256)")] = 256,
    side: Annotated[int, typer.Option(metavar="N", help="side of an image (32)")] = 32,
    repeats: Annotated[int | None, typer.Option(metavar="N", help="times to repeat (5)")] = None,
    steps: Annotated[
        int, typer.Option(metavar="N", help="steps of float32 beside float64 (200)")
    ] = 200,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="threads of torch (all cores)")
    ] = None,
    compile: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile",
            help="compile elementwise functions and the predictor, and record steps (on)",
        ),
    ] = True,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="how a step grows with its sizes")
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="where a step goes")] = False,
    keep_memory: Annotated[
        bool,
        typer.Option(
            "--keep-memory/--no-keep-memory",
            help="keep freed memory in the process, for all alike (on)",
        ),
    ] = True,
) -> None:
    """Measure speed and memory beside a textbook version and a CNN.

    Training steps, predictions, memory and precision of the machine with the settings of the
    published runs; then, unless quick, how a step grows and where its time goes. Either of these
    two alone, if it is asked for. Everything is timed in turn in one process; the figures are
    medians.
    """
    from convdkm.cli.bench import run_bench_command

    run_bench_command(
        quick=quick,
        json=json,
        markdown=markdown,
        widths=widths or [],
        batch=batch,
        side=side,
        repeats=repeats,
        steps=steps,
        threads=threads,
        compiled=compile,
        scaling=scaling,
        profile=profile,
        keep_memory=keep_memory,
    )


def data_list(data_dir: DataDir = None) -> None:
    """List the data sets known by name, and where they are."""
    from convdkm.cli.data import list_sets

    list_sets(data_dir)


def data_verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="data sets (all that are here)")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Read data sets whole, and check what is in them."""
    from convdkm.cli.data import verify_sets

    verify_sets(names or [], data_dir)


def data_fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="data sets to download")],
    data_dir: DataDir = None,
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="download from here instead")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="replace files that are there but not as published")
    ] = False,
) -> None:
    """Download data sets from their official addresses.

    A download that broke off goes on where it was, and every file is checked.
    """
    from convdkm.cli.data import fetch_sets

    fetch_sets(names, data_dir, mirror, force=force)


def build_app(*, options: bool = True) -> typer.Typer:
    """The program.

    Args:
        options: give ``train`` its options. They come from the configuration, which takes longer to
            import than all the rest; the other commands do without.
    """
    app = _typer()
    app.callback(cls=Group, invoke_without_command=True)(root)
    app.command(cls=Command)(with_options(train) if options else without_options(train))
    using = (resume, evaluate, predict, export, show, report, verify, presets, bench)
    for command in (*using, sweep, tables, compare):
        app.command(cls=Command)(command)
    sets = _typer()
    sets.callback(cls=Group, invoke_without_command=True)(data)
    sets.command("list", cls=Command)(data_list)
    sets.command("verify", cls=Command)(data_verify)
    sets.command("fetch", cls=Command)(data_fetch)
    app.add_typer(sets, name="data")
    return app


def _typer() -> typer.Typer:
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for every field of the configuration."""
    from convdkm.cli.options import takes_configuration

    return takes_configuration(command, without=("dataset",))


def without_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command's name and help alone."""

    def listed() -> None: ...

    listed.__name__, listed.__doc__ = command.__name__, command.__doc__
    return listed

"""``convdkm predict``."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from convdkm import __version__
from convdkm.checks import check_choice
from convdkm.cli.arguments import CheckpointName, Device, ViewsOption, argument, option, switch
from convdkm.cli.output import MISSING, console, plain_table, say, warn
from convdkm.errors import InvalidInputError
from convdkm.storage.prediction_file import COLUMNS, CsvForm, Form, JsonForm, PartialFile, Row
from convdkm.storage.text import name_text, one_line

if TYPE_CHECKING:
    from convdkm.data.picture_stream import PictureBatch
    from convdkm.prediction import ClassPrediction

FormName = Literal["table", "csv", "json"]
AT_ONCE = 256
"""Images that a file's machine works on at a time."""
SHORTEST = 10
"""Columns of a terminal that names of images are given at least."""
Advance = Callable[[int], None]


def predict(
    run: Annotated[
        Path,
        argument(
            "RUN",
            "folder of a run, a .safetensors file of convdkm export or Run.save, or the name of a"
            " pretrained machine",
        ),
    ],
    images: Annotated[
        list[Path], argument("IMAGE|FOLDER…", "image files, or folders of image files")
    ],
    format: Annotated[
        str | None,
        option(
            "NAME",
            "table, csv or json (default: by the ending of FILE, else table)",
            "--format",
            "-f",
        ),
    ] = None,
    output: Annotated[
        Path | None, option("FILE", "write to this file instead of the screen", "--output", "-o")
    ] = None,
    *,
    resize: Annotated[
        bool, switch("--resize", "resize images to the size that the machine takes")
    ] = False,
    skip_bad: Annotated[bool, switch("--skip-bad", "skip images that cannot be read")] = False,
    views: ViewsOption = None,
    checkpoint: CheckpointName = "last",
    device: Device = None,
) -> None:
    """Predict the classes of images.

    Each row gives the predicted class and its probability, the entropy of the prediction (its total
    uncertainty) and the mutual information (the part that more data could remove), both in nats.

    Rows are written as they come, so there may be any number of images. With -o, the same command
    continues after an interruption.
    """
    from convdkm.data.image_folder import picture_files
    from convdkm.data.picture_stream import stream_pictures

    ending = "" if output is None else output.suffix.lower().removeprefix(".")
    name = format or (ending if ending in ("csv", "json") else "table")
    check_choice("--format", name, FormName)
    machine = _machine(run, checkpoint, device, views)
    files = picture_files(images)
    forms: dict[str, type[Form]] = {"table": TableForm, "csv": CsvForm, "json": JsonForm}
    form = forms[name](machine.class_names, files)

    def rows(first: int, advance: Advance) -> Iterator[list[Row]]:
        """Rows of the images from a position on, as many at a time as are predicted at once."""
        stream = stream_pictures(
            files,
            machine.image_shape,
            batch=machine.at_once,
            first=first - first % machine.at_once,
            resize=resize,
            skip_bad=skip_bad,
            report=warn,
        )
        with closing(stream):  # type: ignore[type-var]
            for batch in stream:
                found = predicted_rows(machine, batch, form)
                yield [row for row, at in zip(found, batch.positions, strict=True) if at >= first]
                advance(batch.positions[-1] + 1)

    if output is None:
        _print(form, rows)
        return
    options = {"form": name, "resize": resize, "skip_bad": skip_bad, "version": __version__}
    origin = json.dumps([options, machine.digest, machine.at_once])
    tell = partial(say, stderr=True)
    count = _write(PartialFile(output, form, origin, gaps=skip_bad, tell=tell, warn=warn), rows)
    say(f"{count} prediction{'' if count == 1 else 's'} written to {output}", stderr=True)


Rows = Callable[[int, Advance], Iterator[list[Row]]]


def _print(form: Form, rows: Rows) -> None:
    """Rows on standard output; a bar only where they go elsewhere than to the terminal."""
    count = 0
    with _progress(len(form.files), shown=not sys.stdout.isatty()) as advance:
        for some in rows(0, advance):
            text = form.lines(some, first=not count)
            print(text if count else form.start() + text, end="", flush=True)
            count += len(some)
    _require_some(count, form)
    print(form.end, end="", flush=True)


def _write(output: PartialFile, rows: Rows) -> int:
    """Rows in a file, after those that are there already; how many there are."""
    form = output.form
    with output.opened() as file, _progress(len(form.files)) as advance:
        advance(output.next)
        first = True
        for some in rows(output.next, advance):
            file.write(form.lines(some, first=first).encode())
            file.flush()
            first, output.rows = first and not some, output.rows + len(some)
        _require_some(output.rows, form)
    return output.rows


def _require_some(count: int, form: Form) -> None:
    from convdkm.data.pictures import UnreadableImageError

    if not count:
        raise UnreadableImageError(f"none of {len(form.files)} files is a picture that can be read")


@contextmanager
def _progress(total: int, *, shown: bool = True) -> Iterator[Advance]:
    """A bar on standard error, if that is a terminal; yields what it is told the position by."""
    from rich import progress

    screen = console(stderr=True)
    with progress.Progress(
        progress.TextColumn("predicting"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        console=screen,
        disable=not (shown and screen.is_terminal),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)


class Machine(NamedTuple):
    """What predicts images, ``at_once`` in a batch; the digest is of all parameters and settings.

    Each name of a class is one line; the shape is channels, height and width.
    """

    predict: Callable[[Any], ClassPrediction]
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    at_once: int
    digest: str


def _machine(path: Path, checkpoint: str, device: str | None, views: str | None) -> Machine:
    """The machine of a run, of a file, or one that is pretrained."""
    from convdkm.cli.inputs import checked_views, open_run
    from convdkm.predicting import load_predictor
    from convdkm.training.checkpoint import is_machine
    from convdkm.training.run import as_images
    from convdkm.training.world import find_device

    predict: Callable[[Any], Any]
    seen = checked_views(views)
    if path.is_file() and not is_machine(path):
        predictor = load_predictor(path)
        predictor = predictor.with_views(seen or predictor.views)
        if device is not None:
            predictor.to(find_device(device))

        def predict(images: Any) -> Any:
            return predictor.predict(as_images(images), batch_size=AT_ONCE)

        names, at_once, shape = predictor.class_names, AT_ONCE, predictor.sample_shape
        tensors = predictor.state_dict()
        description = f"{predictor.description()}{predictor.device}"
    else:
        run = open_run(path, checkpoint, device)
        predict, names, shape = run.snapshot(seen), run.class_names, run.image_shape
        at_once = run.config.training.evaluation_batch
        tensors = {**run.model.state_dict(), **run.whitening.state_dict(prefix="whitening.")}
        description = f"{run.config.to_yaml()}{run.class_names}{run.model.device}{seen}"
    match shape:
        case (int(channels), int(height), int(width)) if names:
            sizes = channels, height, width
        case _:
            raise InvalidInputError(
                f"{path} does not say the size of its images and the names of its classes; export"
                " it from a run: convdkm export RUN FILE"
            )
    digest = hashlib.sha256(description.encode("utf-8", "backslashreplace"))
    for name, value in tensors.items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return Machine(predict, tuple(map(one_line, names)), sizes, at_once, digest.hexdigest())


def predicted_rows(machine: Machine, batch: PictureBatch, form: Form) -> list[Row]:
    """What is said of each image, with the probabilities of all classes."""
    prediction, classes = machine.predict(batch.images).cpu(), machine.class_names
    known = prediction.expected_entropy is not None
    information = prediction.mutual_information.tolist() if known else [None] * len(prediction)
    columns = (prediction.labels, prediction.probs, prediction.entropy)
    figures = zip(batch.positions, *(c.tolist() for c in columns), information, strict=True)
    return [
        {
            "image": name_text(form.files[position]),
            "class": classes[label],
            "probability": probs[label],
            "entropy": entropy,
            "mutual_information": mutual,
            "probabilities": dict(zip(classes, probs, strict=True)),
        }
        for position, label, probs, entropy, mutual in figures
    ]


class TableForm(Form):
    """A table whose columns are as wide as all names need, or as the terminal allows."""

    resumable = False

    def __init__(self, classes: Sequence[str], files: Sequence[str]) -> None:
        from rich.cells import cell_len
        from rich.measure import Measurement

        super().__init__(classes, files)
        self._screen = console()
        self._titles = [column.replace("_", " ") for column in COLUMNS]
        longest = max((cell_len(self.shown(file)) for file in files), default=0)
        needed = [longest, max(map(cell_len, classes)), 0, 0, 0]
        self._widths = [max(pair) for pair in zip(needed, map(len, self._titles), strict=True)]
        unbounded = self._screen.options.update_width(sum(self._widths) + 100)
        whole = Measurement.get(self._screen, unbounded, self._table([])).maximum
        most = max(SHORTEST, self._widths[0] - max(0, whole - self._screen.width))
        self._widths[0] = min(self._widths[0], most)

    def start(self) -> str:
        return ""

    def lines(self, rows: Iterable[Row], *, first: bool) -> str:
        with self._screen.capture() as captured:
            self._screen.print(self._table(rows, header=first))
        return captured.get()

    def _table(self, rows: Iterable[Row], *, header: bool = True) -> Any:
        cells = (
            (
                row["image"],
                row["class"],
                f"{row['probability']:.1%}",
                *(MISSING if row[c] is None else f"{row[c]:.3f}" for c in COLUMNS[3:]),
            )
            for row in rows
        )
        table = plain_table(*self._titles, rows=cells, right=self._titles[2:])
        table.show_header = header
        for column, width in zip(table.columns, self._widths, strict=True):
            column.width = width
        return table

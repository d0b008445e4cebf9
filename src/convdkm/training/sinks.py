"""Where the records of a training run go: files, TensorBoard, memory, or several at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from convdkm.checks import check_positive
from convdkm.errors import InvalidInputError
from convdkm.storage.files import writing
from convdkm.storage.text import in_markdown, one_line, writable
from convdkm.training.tables import Table, read_table

if TYPE_CHECKING:
    from typing_extensions import Self

Level = Literal["info", "warning", "error"]

INSTRUMENTS = ("kl", "scale_kl", "shape_kl", "explained", "spread", "gradient")
"""What is noted of layers: the columns of ``layers.csv`` after epoch and layer."""


@dataclass(frozen=True)
class RunInfo:
    """What a run is, as known when it starts.

    Attributes:
        name: of the data set.
        num_data: number of training images.
        first_step: steps done before, where the run is resumed.
        parameters: number of parameters of the model.
        detail: a few lines to show, such as the preset and the device.
    """

    name: str
    epochs: int
    steps_per_epoch: int
    num_data: int
    first_step: int = 0
    parameters: int = 0
    detail: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StepRecord:
    """Values of one optimiser step; steps and epochs count from 1 over the whole run.

    The divergences among them are per image, as they enter the objective.
    """

    step: int
    epoch: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class EpochRecord:
    """Values after an epoch, whose last step was ``step``."""

    epoch: int
    step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class LayersRecord:
    """For every layer some of :data:`INSTRUMENTS`; epoch 0 is before the first step."""

    epoch: int
    step: int
    values: Mapping[str, Mapping[str, float]]


class Sink:
    """Base class: takes the records of a run and does nothing with them; a context that closes.

    ``essential`` tells whether a run must stop when this sink fails.
    """

    essential = False

    def start(self, info: RunInfo) -> None:
        """The run begins or goes on."""

    def step(self, record: StepRecord) -> None:
        """A step is done."""

    def epoch(self, record: EpochRecord) -> None:
        """An epoch is done."""

    def layers(self, record: LayersRecord) -> None:
        """The instruments were read: before the first step, and after every epoch."""

    def message(self, text: str, level: Level = "info") -> None:
        """Something to tell the user."""

    def progress(self, what: str, done: int, total: int) -> None:
        """How far some work between or after steps has come, such as the scoring of images."""

    def close(self) -> None:
        """The run is over, or was stopped; closing twice is allowed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:  # what stopped the run matters more than what closing might raise
            with suppress(Exception):
                self.close()


class MemorySink(Sink):
    """Keeps everything it is given, as lists."""

    def __init__(self) -> None:
        self.infos: list[RunInfo] = []
        self.steps: list[StepRecord] = []
        self.epochs: list[EpochRecord] = []
        self.readings: list[LayersRecord] = []
        self.messages: list[tuple[Level, str]] = []
        self.work: list[tuple[str, int, int]] = []
        self.closed = False

    def start(self, info: RunInfo) -> None:
        self.infos.append(info)

    def step(self, record: StepRecord) -> None:
        self.steps.append(record)

    def epoch(self, record: EpochRecord) -> None:
        self.epochs.append(record)

    def layers(self, record: LayersRecord) -> None:
        self.readings.append(record)

    def message(self, text: str, level: Level = "info") -> None:
        self.messages.append((level, text))

    def progress(self, what: str, done: int, total: int) -> None:
        self.work.append((what, done, total))

    def close(self) -> None:
        self.closed = True


class CsvSink(Sink):
    """The record of a run: ``steps.csv``, ``epochs.csv`` and ``layers.csv`` in a folder.

    Every row reaches the operating system before the call returns, so that a killed process loses
    no more than the row it was writing. A key that turns up later adds a column.

    Args:
        folder: where the files are; made if it does not exist.
        keep_through_step: go on with the files of a run that had come this far: later rows, and a
            row torn by the end of the process, are dropped. By default the run is a new one, and
            the folder must not hold files of another.
        ends_epoch: where that step is the last of an epoch, whether the epoch's row is kept, too.
    """

    essential = True

    def __init__(
        self, folder: str | Path, *, keep_through_step: int | None = None, ends_epoch: bool = True
    ) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._steps = Table(folder / "steps.csv")
        self._epochs = Table(folder / "epochs.csv")
        self._layers = Table(folder / "layers.csv", ("epoch", "layer", *INSTRUMENTS))
        self._tables = (self._steps, self._epochs, self._layers)
        if keep_through_step is None:
            for table in self._tables:
                if table.path.exists():
                    raise InvalidInputError(
                        f"{table.path} holds the record of another run; resume that run or choose"
                        " another folder"
                    )
            return
        last = keep_through_step
        self._steps.load(lambda row: int(row["step"]) <= last)
        self._epochs.load(lambda row: int(row["step"]) <= last - (not ends_epoch))
        epochs = {row["epoch"] for row in self._epochs.rows()} | ({"0"} if last else set())
        self._layers.load(lambda row: row["epoch"] in epochs)

    def step(self, record: StepRecord) -> None:
        self._steps.append({"step": record.step, "epoch": record.epoch}, record.values)

    def epoch(self, record: EpochRecord) -> None:
        self._epochs.append({"epoch": record.epoch, "step": record.step}, record.values)
        for table in self._tables:
            table.sync()

    def layers(self, record: LayersRecord) -> None:
        for layer, values in record.values.items():
            self._layers.append({"epoch": record.epoch, "layer": layer}, values)
        self._layers.sync()

    def close(self) -> None:
        for table in self._tables:
            table.close()


def read_csv(path: str | Path) -> list[dict[str, float]]:
    """The rows of ``steps.csv`` or ``epochs.csv``, without blank cells and without a torn end."""
    _, rows = read_table(Path(path))
    return [{name: float(cell) for name, cell in row.items()} for row in rows]


def read_layers(path: str | Path) -> dict[int, dict[str, dict[str, float]]]:
    """The content of ``layers.csv``: for every epoch and layer, the instruments that were read."""
    _, rows = read_table(Path(path))
    layers: dict[int, dict[str, dict[str, float]]] = {}
    for row in rows:
        values = {name: float(cell) for name, cell in row.items() if name not in ("epoch", "layer")}
        layers.setdefault(int(row["epoch"]), {})[row["layer"]] = values
    return layers


class LogSink(Sink):
    """Appends messages to ``log.txt``, each with its time."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / "log.txt"

    def start(self, info: RunInfo) -> None:
        verb = "goes on after" if info.first_step else "starts at"
        total = info.epochs * info.steps_per_epoch
        self.message(f"training {verb} step {info.first_step} of {total}")

    def message(self, text: str, level: Level = "info") -> None:
        moment = datetime.now(timezone.utc).isoformat(timespec="seconds")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{moment} {level}: {one_line(text)}\n")


class TensorBoardSink(Sink):
    """Event files for TensorBoard; needs the optional package ``tensorboard``.

    Args:
        folder: where the event files go.
        keep_through_step: of a resumed run; TensorBoard hides what was written of later steps.
        every_steps: write the values of one step in so many; TensorBoard shows a sample of a long
            curve in any case.
    """

    def __init__(
        self, folder: str | Path, *, keep_through_step: int | None = None, every_steps: int = 10
    ) -> None:
        check_positive(every_steps=every_steps)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InvalidInputError(
                "logging to TensorBoard needs a package that is not installed; install it by"
                " pip install convdkm[tensorboard]"
            ) from error
        purge = None if keep_through_step is None else keep_through_step + 1
        self._every = every_steps
        with writing(Path(folder)):
            self._writer = SummaryWriter(str(folder), purge_step=purge)

    def start(self, info: RunInfo) -> None:
        rows = {
            "data set": info.name,
            "epochs": info.epochs,
            "steps per epoch": info.steps_per_epoch,
            "training images": info.num_data,
            "parameters": info.parameters,
            **info.detail,
        }
        lines = (f"| {in_markdown(name)} | {in_markdown(value)} |" for name, value in rows.items())
        self._writer.add_text("run", "\n".join(("| | |", "|-|-|", *lines)), info.first_step)

    def step(self, record: StepRecord) -> None:
        if record.step % self._every == 0:
            self._write("step", record.values, record.step)

    def epoch(self, record: EpochRecord) -> None:
        self._write("epoch", record.values, record.step)
        self._writer.flush()

    def layers(self, record: LayersRecord) -> None:
        for layer, values in record.values.items():
            for name, value in values.items():
                self._write(f"layer_{name}", {layer: value}, record.step)

    def close(self) -> None:
        self._writer.close()

    def _write(self, group: str, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"{group}/{name}", float(value), step)


def tensorboard_of(folder: Path, step: int, tell: Callable[[str], None]) -> list[TensorBoardSink]:
    """The sink of a run that is at a step, if TensorBoard is here; it takes no path but UTF-8."""
    if find_spec("tensorboard") is None:
        return []
    if not writable(str(folder)):
        tell("TensorBoard is left out: it takes no path that is not plain UTF-8")
        return []
    return [TensorBoardSink(folder, keep_through_step=step or None)]


class Sinks(Sink):
    """Several sinks as one.

    The failure of an essential sink is raised. Any other sink that fails is closed and dropped,
    and those that are left are told once.
    """

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self.sinks = list(sinks)
        self.essential = any(sink.essential for sink in self.sinks)

    def start(self, info: RunInfo) -> None:
        self._forward(lambda sink: sink.start(info))

    def step(self, record: StepRecord) -> None:
        self._forward(lambda sink: sink.step(record))

    def epoch(self, record: EpochRecord) -> None:
        self._forward(lambda sink: sink.epoch(record))

    def layers(self, record: LayersRecord) -> None:
        self._forward(lambda sink: sink.layers(record))

    def message(self, text: str, level: Level = "info") -> None:
        self._forward(lambda sink: sink.message(text, level))

    def progress(self, what: str, done: int, total: int) -> None:
        self._forward(lambda sink: sink.progress(what, done, total))

    def close(self) -> None:
        failures = []
        for sink in self.sinks:
            try:
                sink.close()
            except Exception as error:
                failures += [error] if sink.essential else []
        if failures:
            raise failures[0]

    def _forward(self, call: Callable[[Sink], None]) -> None:
        for sink in tuple(self.sinks):
            if sink not in self.sinks:
                continue
            try:
                call(sink)
            except Exception as error:
                if sink.essential:
                    raise
                self.sinks.remove(sink)
                with suppress(Exception):
                    sink.close()
                self.message(
                    f"{type(sink).__name__} failed and is used no more:"
                    f" {type(error).__name__}: {error}. Training goes on.",
                    "warning",
                )

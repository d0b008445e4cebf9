"""The view of a run in a terminal: live where there is one, plain lines where there is not."""

from __future__ import annotations

import atexit
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from convdkm.storage.text import legible
from convdkm.training.sinks import EpochRecord, Level, RunInfo, Sink, StepRecord
from convdkm.training.time_left import Clock, TimeLeft

MISSING = "–"
REFRESHES_PER_SECOND = 4
SECONDS_BETWEEN_LINES = 30.0


# -- numbers as text -------------------------------------------------------------------------------


def format_duration(seconds: float | None) -> str:
    """A duration in its two largest units.

    >>> format_duration(45.2), format_duration(61), format_duration(3720), format_duration(90_000)
    ('45 s', '1 min 01 s', '1 h 02 min', '1 d 01 h')
    """
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return MISSING
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def format_number(value: float | None) -> str:
    """A value of the objective or of one of its parts, in at most nine characters."""
    if value is None or not math.isfinite(value):
        return MISSING
    size = abs(value)
    if size and (size < 5e-4 or size >= 1e5):
        return f"{value:.2e}"
    return f"{value:.4f}" if size < 1000 else f"{value:.2f}"


def format_percent(share: float | None) -> str:
    """A share such as an accuracy, in per cent."""
    return MISSING if share is None or not math.isfinite(share) else f"{100 * share:.2f}%"


def format_rate(rate: float | None) -> str:
    """A learning rate."""
    return MISSING if rate is None or not math.isfinite(rate) else f"{rate:.3g}"


def format_speed(images_per_second: float | None) -> str:
    """Images per second."""
    if images_per_second is None or not math.isfinite(images_per_second):
        return MISSING
    return f"{images_per_second:,.0f}" if images_per_second >= 10 else f"{images_per_second:.2g}"


# -- the line of an epoch --------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of the table of epochs; ``held_out`` in a key stands for test or validation."""

    title: str
    key: str
    width: int
    show: Callable[[float | None], str]


COLUMNS = (
    Column("objective", "objective", 9, format_number),
    Column("train acc.", "train_accuracy", 10, format_percent),
    Column("{short} acc.", "{held_out}_accuracy", 9, format_percent),
    Column("{short} LL", "{held_out}_log_likelihood", 8, format_number),
    Column("rate", "learning_rate", 8, format_rate),
    Column("time", "seconds", 11, format_duration),
)
SHORT_NAMES = {"test": "test", "validation": "val."}
EPOCH_WIDTH = 9


class EpochTable:
    """Aligned lines, one for each epoch, below a header."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._held_out: str | None = None

    def header(self, values: Mapping[str, float]) -> str | None:
        """The header, where these values are the first, or have other columns than those before."""
        before = self._held_out
        found = [name for name in SHORT_NAMES if f"{name}_accuracy" in values]
        self._held_out = found[0] if found else before or "test"
        short = SHORT_NAMES[self._held_out]
        titles = [column.title.format(short=short).rjust(column.width) for column in COLUMNS]
        return None if self._held_out == before else self._line("epoch", *titles)

    def line(self, record: EpochRecord) -> str:
        """The line of an epoch."""
        keys = [column.key.format(held_out=self._held_out) for column in COLUMNS]
        cells = [
            column.show(record.values.get(key)).rjust(column.width)
            for column, key in zip(COLUMNS, keys, strict=True)
        ]
        return self._line(f"{record.epoch}/{self._epochs}", *cells)

    def unfinished_line(
        self, epoch: int, objective: float | None, accuracy: float | None, remark: str
    ) -> str:
        """A line within an epoch, in the first columns, and a remark."""
        cells = format_number(objective).rjust(9), format_percent(accuracy).rjust(10)
        return self._line(f"{epoch}/{self._epochs}", *cells, remark)

    @staticmethod
    def _line(epoch: str, *cells: str) -> str:
        return "  ".join((epoch.rjust(EPOCH_WIDTH), *cells))


# -- the sink --------------------------------------------------------------------------------------


class TerminalSink(Sink):
    """Shows a run: bars, the objective and its parts, and one lasting line for every epoch.

    Args:
        console: where to show it; standard output by default. Where that is no terminal, there is
            a plain line for every epoch, and one every half minute within a longer epoch.
        clock: the time in seconds.
    """

    def __init__(self, console: Console | None = None, *, clock: Clock = time.monotonic) -> None:
        self._console = console if console is not None else Console(highlight=False)
        self._clock = clock
        self._live: Live | None = None
        self._info: RunInfo | None = None
        self._last: StepRecord | None = None
        self._seconds: float | None = None
        self._work: tuple[str, int, int] | None = None
        self._last_line = clock()
        self._accuracy_sum = self._accuracy_count = 0.0

    def start(self, info: RunInfo) -> None:
        self.close()
        self._info, self._last, self._seconds, self._work = info, None, None, None
        self._left, self._table = TimeLeft(info, self._clock), EpochTable(info.epochs)
        self._print(
            f"{info.name}: {info.num_data:,} images, {info.epochs:,} epochs of"
            f" {info.steps_per_epoch:,} steps, {info.parameters:,} parameters",
            "bold",
        )
        width = max(map(len, info.detail), default=0)
        for name, value in info.detail.items():
            self._print(f"  {name:<{width}}  {value}", wrap=True)
        if info.first_step:
            self._print(f"continues after step {info.first_step:,}")
        self._print("")
        if self._console.is_terminal and self._console.is_interactive:
            self._live = Live(
                self,
                console=self._console,
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=sys.stderr.isatty(),
            )
            atexit.register(self.close)
            self._live.start()

    def step(self, record: StepRecord) -> None:
        if self._last is None or record.epoch != self._last.epoch:
            self._accuracy_sum = self._accuracy_count = 0.0
        accuracy = record.values.get("accuracy", math.nan)
        if not math.isnan(accuracy):
            self._accuracy_sum += accuracy
            self._accuracy_count += 1
        self._last, self._seconds = record, record.values.get("seconds")
        self._left.step(record.step, record.epoch)
        if self._live is None and self._clock() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._print_progress(record)

    def epoch(self, record: EpochRecord) -> None:
        self._left.epoch(record.epoch)
        self._seconds = record.values.get("seconds")
        self._print_header(record.values)
        self._print(self._table.line(record))

    def message(self, text: str, level: Level = "info") -> None:
        prefix, style = {
            "info": ("", ""),
            "warning": ("warning: ", "yellow"),
            "error": ("error: ", "bold red"),
        }[level]
        self._print(prefix + text, style, wrap=True)

    def progress(self, what: str, done: int, total: int) -> None:
        self._work = (what, done, total) if done < total else None
        if self._live is None and self._clock() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._print(f"{what}: {done:,} of {total:,}")

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            atexit.unregister(self.close)
            try:
                live.stop()
            finally:
                self._console.show_cursor(True)
        info, self._info = self._info, None
        if info is not None:
            self._print(self._closing_line(info))

    # -- text ----------------------------------------------------------------------------------

    def _print(self, text: str, style: str = "", *, wrap: bool = False) -> None:
        """Print above the bars; in a file a line is never broken, however long."""
        encoding = self._console.encoding
        text = legible(text).encode(encoding, "replace").decode(encoding)
        plain = self._live is None and not self._console.is_terminal
        line = Text(text, style, no_wrap=not wrap, overflow="fold" if wrap else "ellipsis")
        self._console.print(line, soft_wrap=plain, highlight=False)
        self._last_line = self._clock()

    def _print_header(self, values: Mapping[str, float]) -> None:
        header = self._table.header(values)
        if header is not None:
            self._print(header, "bold")

    def _print_progress(self, record: StepRecord) -> None:
        self._print_header({})
        remark = (
            f"step {self._step_of_epoch()}/{self._known_info().steps_per_epoch},"
            f" {format_speed(record.values.get('images_per_second'))} img/s,"
            f" {format_duration(self._left.of_run())} left"
        )
        objective, accuracy = record.values.get("objective"), self._epoch_accuracy()
        self._print(self._table.unfinished_line(record.epoch, objective, accuracy, remark))

    def _closing_line(self, info: RunInfo) -> str:
        steps = self._last.step if self._last is not None else info.first_step
        after = f" after {format_duration(self._seconds)}" if self._seconds is not None else ""
        total = info.epochs * info.steps_per_epoch
        if self._work is not None:
            what, done, whole = self._work
            return f"stopped at step {steps:,} of {total:,}{after}, {what}: {done:,} of {whole:,}"
        if steps >= total:
            return f"finished{after}"
        return f"stopped at step {steps:,} of {total:,}{after}"

    # -- the live part -------------------------------------------------------------------------

    def __rich__(self) -> RenderableType:
        info, record = self._known_info(), self._last
        values = record.values if record is not None else {}
        step = record.step if record is not None else info.first_step
        epoch = record.epoch if record is not None else step // info.steps_per_epoch + 1
        inside = self._step_of_epoch()
        bars = Table.grid(padding=(0, 2), expand=True)
        bars.add_column(no_wrap=True)
        bars.add_column(justify="right", no_wrap=True, min_width=EPOCH_WIDTH - len("epoch") - 2)
        bars.add_column(ratio=1)
        bars.add_column(justify="right", no_wrap=True)
        bars.add_column(justify="right", no_wrap=True, min_width=16)
        rows: list[tuple[str, int, float, int, str]] = [
            (name, now, done, total, f"{format_duration(left)} left")
            for name, now, done, total, left in (
                ("epoch", epoch, step / info.steps_per_epoch, info.epochs, self._left.of_run()),
                ("step", inside, inside, info.steps_per_epoch, self._left.of_epoch()),
            )
        ]
        if self._work is not None:
            what, finished, whole = self._work
            rows.append(("images", finished, finished, whole, what))
        for name, now, done, total, remark in rows:
            bars.add_row(
                name,
                f"{now}/{total}",
                ProgressBar(total=total, completed=done),
                f"{math.floor(100 * done / total)}%",
                remark,
            )
        lines = objective_line(values), self._speed_line(values)
        return Group(bars, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))

    def _speed_line(self, values: Mapping[str, float]) -> str:
        return (
            f"accuracy {format_percent(values.get('accuracy')):>7} batch,"
            f" {format_percent(self._epoch_accuracy()):>7} epoch"
            f"   rate {format_rate(values.get('learning_rate'))}"
            f"   {format_speed(values.get('images_per_second'))} images/s"
        )

    def _known_info(self) -> RunInfo:
        assert self._info is not None, "start was not called"
        return self._info

    def _step_of_epoch(self) -> int:
        info, record = self._known_info(), self._last
        if record is None:
            return info.first_step % info.steps_per_epoch
        return record.step - (record.epoch - 1) * info.steps_per_epoch

    def _epoch_accuracy(self) -> float | None:
        return self._accuracy_sum / self._accuracy_count if self._accuracy_count else None


def objective_line(values: Mapping[str, float]) -> str:
    """The objective as the sum it is, all terms per image."""
    objective, likelihood, head, layers = (
        format_number(values.get(name))
        for name in ("objective", "expected_log_likelihood", "head_kl", "kl")
    )
    return (
        f"objective {objective:>8} = log-lik. {likelihood:>8}"
        f" − head KL {head:>8} − Gram KL {layers:>8}"
    )

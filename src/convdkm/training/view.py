"""The view of a run in a terminal: live where there is one, plain lines where there is not."""

from __future__ import annotations

import atexit
import math
import sys
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from convdkm.storage.text import legible
from convdkm.training.sinks import EpochRecord, Level, RunInfo, Sink, StepRecord

Clock = Callable[[], float]
MISSING = "–"
REFRESHES_PER_SECOND = 4
SECONDS_BETWEEN_LINES = 30.0


# -- numbers as text -------------------------------------------------------------------------------


def _or_missing(show: Callable[[float], str]) -> Callable[[float | None], str]:
    """Show a dash for a value that is absent or not finite."""

    @wraps(show)
    def shown(value: float | None) -> str:
        return MISSING if value is None or not math.isfinite(value) else show(value)

    return shown


@_or_missing
def format_duration(seconds: float) -> str:
    """A duration in its two largest units.

    >>> format_duration(45.2), format_duration(61), format_duration(3720), format_duration(90_000)
    ('45 s', '1 min 01 s', '1 h 02 min', '1 d 01 h')
    """
    if seconds < 0:
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


@_or_missing
def format_flops(flops: float) -> str:
    """A number of floating-point operations.

    >>> format_flops(2.34e9), format_flops(1.26e15)
    ('2.3 GFLOP', '1.3 PFLOP')
    """
    power = min(max(int(math.log10(max(flops, 1.0))) // 3, 3), 6)
    return f"{flops / 1000**power:,.1f} {'GTPE'[power - 3]}FLOP"


@_or_missing
def format_number(value: float) -> str:
    """A value of the objective or of one of its parts, in at most nine characters."""
    size = abs(value)
    if size and (size < 5e-4 or size >= 1e5):
        return f"{value:.2e}"
    return f"{value:.4f}" if size < 1000 else f"{value:.2f}"


@_or_missing
def format_percent(share: float) -> str:
    """A share such as an accuracy, in per cent."""
    return f"{100 * share:.2f}%"


@_or_missing
def format_rate(rate: float) -> str:
    """A learning rate."""
    return f"{rate:.3g}"


@_or_missing
def format_speed(images_per_second: float) -> str:
    """Images per second."""
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


# -- the time left ---------------------------------------------------------------------------------


class TimeLeft:
    """Predicts how long a run still takes, from what this process has seen of it.

    The time of a step is a weighted mean in which a step loses its weight over about a minute, or
    over twenty steps where they are slow. The time between the last step of an epoch and the first
    of the next, such as evaluation, is averaged over the epochs.
    """

    MEMORY_SECONDS = 60.0
    MEMORY_STEPS = 20

    def __init__(self, info: RunInfo, clock: Clock) -> None:
        self._clock = clock
        self._steps_per_epoch, self._epochs = info.steps_per_epoch, info.epochs
        self._step, self._finished_epochs = info.first_step, info.first_step // info.steps_per_epoch
        self._epoch = self._finished_epochs + 1
        self._time: float | None = None
        self._weighted_seconds = self._weighted_steps = 0.0
        self._pauses, self._paused_seconds = 0, 0.0

    @property
    def seconds_per_step(self) -> float | None:
        """The weighted mean; None before the second step of this process."""
        return self._weighted_seconds / self._weighted_steps if self._weighted_steps else None

    def step(self, step: int, epoch: int) -> None:
        """Take note of a step that has just ended."""
        now, count = self._clock(), step - self._step
        if self._time is not None and count > 0:
            seconds = now - self._time
            usual = self.seconds_per_step
            if epoch == self._epoch or self._steps_per_epoch == 1:
                memory = max(math.exp(-seconds / self.MEMORY_SECONDS), 1 - 1 / self.MEMORY_STEPS)
                self._weighted_seconds = memory * self._weighted_seconds + seconds
                self._weighted_steps = memory * self._weighted_steps + count
            elif usual is not None:
                self._paused_seconds += max(seconds - count * usual, 0.0)
        self._step, self._epoch, self._time = step, epoch, now

    def epoch(self, epoch: int) -> None:
        """Take note of an epoch whose record is complete."""
        now = self._clock()
        if self._time is not None:
            self._pauses += 1
            self._paused_seconds += now - self._time
            self._time = now
        self._finished_epochs = epoch

    def of_epoch(self) -> float | None:
        """Seconds until the last step of this epoch."""
        return self._predict(self._epoch * self._steps_per_epoch - self._step, 0)

    def of_run(self) -> float | None:
        """Seconds until the end of the run."""
        steps = self._epochs * self._steps_per_epoch - self._step
        return self._predict(steps, self._epochs - self._finished_epochs)

    def _predict(self, steps: int, epochs: int) -> float | None:
        usual = self.seconds_per_step
        if usual is None or self._time is None:
            return None
        pause = self._paused_seconds / self._pauses if self._pauses else 0.0
        return max(steps * usual + epochs * pause - (self._clock() - self._time), 0.0)


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
        self._left, self._held_out = TimeLeft(info, self._clock), ""
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
        cells = []
        for column in COLUMNS:
            value = record.values.get(column.key.format(held_out=self._held_out))
            cells.append(column.show(value).rjust(column.width))
        self._print_row(f"{record.epoch}/{self._known_info().epochs}", *cells)

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
        """Print the titles of columns where they are the first, or other than those before."""
        before = self._held_out
        found = [name for name in SHORT_NAMES if f"{name}_accuracy" in values]
        self._held_out = found[0] if found else before or "test"
        if self._held_out != before:
            short = SHORT_NAMES[self._held_out]
            titles = (column.title.format(short=short).rjust(column.width) for column in COLUMNS)
            self._print_row("epoch", *titles, style="bold")

    def _print_row(self, epoch: str, *cells: str, style: str = "") -> None:
        self._print("  ".join((epoch.rjust(EPOCH_WIDTH), *cells)), style)

    def _print_progress(self, record: StepRecord) -> None:
        self._print_header({})
        info = self._known_info()
        self._print_row(
            f"{record.epoch}/{info.epochs}",
            format_number(record.values.get("objective")).rjust(9),
            format_percent(self._epoch_accuracy()).rjust(10),
            f"step {self._step_of_epoch()}/{info.steps_per_epoch},"
            f" {format_speed(record.values.get('images_per_second'))} img/s,"
            f" {format_duration(self._left.of_run())} left",
        )

    def _closing_line(self, info: RunInfo) -> str:
        steps = self._last.step if self._last is not None else info.first_step
        after = f" after {format_duration(self._seconds)}" if self._seconds is not None else ""
        total = info.epochs * info.steps_per_epoch
        if self._work is None and steps >= total:
            return f"finished{after}"
        stopped = f"stopped at step {steps:,} of {total:,}{after}"
        if self._work is None:
            return stopped
        what, done, whole = self._work
        return f"{stopped}, {what}: {done:,} of {whole:,}"

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
        of_run, of_epoch = map(format_duration, (self._left.of_run(), self._left.of_epoch()))
        rows: list[tuple[str, int, float, int, str]] = [
            ("epoch", epoch, step / info.steps_per_epoch, info.epochs, f"{of_run} left"),
            ("step", inside, inside, info.steps_per_epoch, f"{of_epoch} left"),
        ]
        if self._work is not None:
            what, finished, whole = self._work
            rows.append(("images", finished, finished, whole, what))
        for name, now, done, total, remark in rows:
            bar = ProgressBar(total=total, completed=done)
            share = f"{math.floor(100 * done / total)}%"
            bars.add_row(name, f"{now}/{total}", bar, share, remark)
        objective, likelihood, head, layers = (
            format_number(values.get(name))
            for name in ("objective", "expected_log_likelihood", "head_kl", "kl")
        )
        lines = (
            f"objective {objective:>8} = log-lik. {likelihood:>8}"
            f" − head KL {head:>8} − Gram KL {layers:>8}",
            f"accuracy {format_percent(values.get('accuracy')):>7} batch,"
            f" {format_percent(self._epoch_accuracy()):>7} epoch"
            f"   rate {format_rate(values.get('learning_rate'))}"
            f"   {format_speed(values.get('images_per_second'))} images/s",
        )
        return Group(bars, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))

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

"""The view of a run: what a reader sees, with and without a terminal."""

import io
import math
import sys
import threading
import time

import pytest
from rich.console import Console

from convdkm.training import view
from convdkm.training.sinks import EpochRecord, RunInfo, Sinks, StepRecord
from convdkm.training.view import (
    TerminalSink,
    TimeLeft,
    format_duration,
    format_number,
    format_percent,
    format_rate,
    format_speed,
)

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
INFO = RunInfo(
    name="cifar10",
    epochs=300,
    steps_per_epoch=100,
    num_data=50_000,
    parameters=1_234_567,
    detail={"preset": "published", "ν": "0.001"},
)


class FakeClock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Screen:
    """A sink, the clock it goes by, and what it has printed."""

    def __init__(self, *, terminal, width=80, encoding=None, info=INFO):
        self.file = io.StringIO()
        if encoding:
            self.file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        self.clock = FakeClock()
        self.console = Console(
            file=self.file,
            force_terminal=terminal,
            width=width,
            height=40,
            _environ={"TERM": "xterm", "COLUMNS": str(width)},
        )
        self.sink = TerminalSink(self.console, clock=self.clock)
        self.info = info

    @property
    def lines(self):
        return self.file.getvalue().split("\n")

    def live(self):
        """The lines of the live part as they are at this moment."""
        options = self.console.options
        lines = self.console.render_lines(self.sink, options, pad=False)
        return ["".join(segment.text for segment in line).rstrip() for line in lines]

    def step(self, step, seconds=1.0, **values):
        self.clock.now += seconds
        epoch = -(-step // self.info.steps_per_epoch)
        given = {
            "objective": -1.2345,
            "expected_log_likelihood": -1.2,
            "head_kl": 0.0234,
            "kl": 0.0111,
            "accuracy": 0.5,
            "learning_rate": 0.01,
            "images_per_second": 1234.5,
            "seconds": self.clock.now - 1000,
        }
        self.sink.step(StepRecord(step, epoch, given | values))

    def epoch(self, epoch, seconds=0.0, **values):
        self.clock.now += seconds
        given = {
            "objective": -0.5,
            "train_accuracy": 0.875,
            "learning_rate": 0.01,
            "seconds": self.clock.now - 1000,
        }
        record = EpochRecord(epoch, epoch * self.info.steps_per_epoch, given | values)
        self.sink.epoch(record)


@pytest.fixture
def screen():
    screens = []

    def make(**options):
        screens.append(Screen(**options))
        return screens[-1]

    yield make
    for made in screens:
        made.sink.close()


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (45, "45 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (61, "1 min 01 s"),
        (3599.6, "1 h 00 min"),
        (3720, "1 h 02 min"),
        (86_399, "1 d 00 h"),
        (86_340, "23 h 59 min"),
        (200_000, "2 d 08 h"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
        (-1, "–"),
    ],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text
    assert len(text) <= 11


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.43214, "-0.4321"),
        (0.0, "0.0000"),
        (0.00001234, "1.23e-05"),
        (-999.5, "-999.5000"),
        (-12345.678, "-12345.68"),
        (-1234567, "-1.23e+06"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_numbers(value, text):
    assert format_number(value) == text
    assert len(text) <= 9


def test_other_figures():
    assert format_percent(0.98333) == "98.33%"
    assert format_percent(1.0) == "100.00%"
    assert format_rate(0.00125) == "0.00125"
    assert format_rate(1e-5) == "1e-05"
    assert format_speed(12345.6) == "12,346"
    assert format_speed(0.123) == "0.12"
    for show in (format_percent, format_rate, format_speed):
        assert show(None) == show(math.nan) == "–"


# -- time left -------------------------------------------------------------------------------------


def test_time_left_of_a_steady_run():
    clock = FakeClock()
    left = TimeLeft(INFO, clock)
    assert left.of_run() is None
    clock.now += 500  # a slow start does not count
    left.step(1, 1)
    assert left.of_epoch() is None
    for step in range(2, 51):
        clock.now += 2
        left.step(step, 1)
    assert left.of_epoch() == pytest.approx(50 * 2)
    assert left.of_run() == pytest.approx((30_000 - 50) * 2)
    clock.now += 1
    assert left.of_epoch() == pytest.approx(50 * 2 - 1)
    clock.now += 1000
    assert left.of_epoch() == 0


@pytest.mark.parametrize("first", [0, 500, 540])
def test_time_left_counts_evaluation_and_nothing_before_a_resume(first):
    info = RunInfo("digits", 10, 100, 1437, first)
    clock = FakeClock()
    left = TimeLeft(info, clock)
    for step in range(first + 1, first + 251):
        clock.now += 2
        left.step(step, -(-step // 100))
        if step % 100 == 0:
            clock.now += 30
            left.epoch(step // 100)
            steps, epochs = 1000 - step, 10 - step // 100
            assert 2 * steps + 30 * epochs <= left.of_run() <= 2 * steps + 35 * epochs
            clock.now += 5  # a checkpoint
    step = first + 250
    remaining = (1000 - step) * 2 + (10 - step // 100) * 35
    assert left.of_run() == pytest.approx(remaining)


def test_time_left_of_epochs_of_one_step():
    clock = FakeClock()
    left = TimeLeft(RunInfo("digits", 100, 1, 1437), clock)
    for step in range(1, 11):
        clock.now += 2
        left.step(step, step)
        clock.now += 3
        left.epoch(step)
    assert left.of_run() == pytest.approx(90 * 5)


def test_time_left_follows_a_change_of_speed():
    clock = FakeClock()
    left = TimeLeft(INFO, clock)
    for step in range(1, 100):
        clock.now += 1 if step < 50 else 3
        left.step(step, 1)
    assert left.seconds_per_step == pytest.approx(3, rel=0.3)
    assert left.seconds_per_step < 3
    for step in range(101, 10_000, 10):  # told of every tenth step only
        clock.now += 30
        left.step(step, 2)
    assert left.seconds_per_step == pytest.approx(3)


# -- without a terminal ----------------------------------------------------------------------------


def test_plain_lines(screen):
    shown = screen(terminal=False)
    shown.sink.start(INFO)
    for step in range(1, 11):
        shown.step(step)
    shown.epoch(1, test_accuracy=0.8125, test_log_likelihood=-0.61)
    shown.epoch(2)
    shown.sink.message("take care", "warning")
    shown.sink.message("all is well")
    shown.sink.message("all is lost", "error")
    shown.sink.close()
    assert shown.lines == [
        "cifar10: 50,000 images, 300 epochs of 100 steps, 1,234,567 parameters",
        "  preset  published",
        "  ν       0.001",
        "",
        "    epoch  objective  train acc.  test acc.   test LL      rate         time",
        "    1/300    -0.5000      87.50%     81.25%   -0.6100      0.01         10 s",
        "    2/300    -0.5000      87.50%          –         –      0.01         10 s",
        "warning: take care",
        "all is well",
        "error: all is lost",
        "stopped at step 10 of 30,000 after 10 s",
        "",
    ]


def test_a_line_every_half_minute_of_a_long_epoch(screen):
    shown = screen(terminal=False)
    shown.sink.start(INFO)
    for step in range(1, 71):
        shown.step(step, accuracy=0.5 if step % 2 else 0.7)
    assert shown.lines[4:] == [
        "    epoch  objective  train acc.  test acc.   test LL      rate         time",
        "    1/300    -1.2345      60.00%  step 30/100, 1,234 img/s, 8 h 20 min left",
        "    1/300    -1.2345      60.00%  step 60/100, 1,234 img/s, 8 h 19 min left",
        "",
    ]


def test_short_epochs_have_no_lines_between(screen):
    shown = screen(terminal=False)
    shown.sink.start(INFO)
    for epoch in range(1, 6):
        for step in range(100):
            shown.step((epoch - 1) * 100 + step + 1, seconds=0.2)
        shown.epoch(epoch)
    assert len(shown.lines) == 4 + 1 + 5 + 1


def test_validation_takes_the_place_of_a_missing_test(screen):
    shown = screen(terminal=False)
    shown.sink.start(INFO)
    shown.step(1)
    shown.epoch(1)
    shown.epoch(2, validation_accuracy=0.5, validation_log_likelihood=-1)
    shown.epoch(3)
    shown.epoch(4, validation_accuracy=0.5, test_accuracy=0.25)
    assert [line for line in shown.lines if "LL" in line or "25.00%" in line] == [
        "    epoch  objective  train acc.  test acc.   test LL      rate         time",
        "    epoch  objective  train acc.  val. acc.   val. LL      rate         time",
        "    epoch  objective  train acc.  test acc.   test LL      rate         time",
        "    4/300    -0.5000      87.50%     25.00%         –      0.01          1 s",
    ]


def test_a_resumed_run_says_where_it_goes_on(screen):
    info = RunInfo("digits", 2, 10, 1437, first_step=15)
    shown = screen(terminal=False, info=info)
    shown.sink.start(info)
    for step in range(16, 21):
        shown.step(step)
    shown.epoch(2, seconds=2)
    shown.sink.close()
    assert shown.lines[1] == "continues after step 15"
    assert shown.lines[-2] == "finished after 7 s"


def test_nothing_is_broken_or_interpreted_in_a_file(screen):
    shown = screen(terminal=False)
    text = "see [bold]/runs/[0][/bold] " + "word " * 40
    shown.sink.message(text.strip())
    assert shown.lines[0] == text.strip()


def test_codes_in_a_message_are_shown_and_not_obeyed(screen):
    for terminal in (True, False):
        shown = screen(terminal=terminal)
        shown.sink.message("left out: \x1b]0;title\x07\x9b2J\udcff.png")
        shown.sink.close()
        assert r"\x1b]0;title\x07\xc2\x9b2J\xff.png" in "".join(shown.lines)


def test_an_encoding_without_the_signs_is_no_failure(screen):
    shown = screen(terminal=False, encoding="ascii")
    shown.sink.start(INFO)
    shown.epoch(1)
    shown.file.flush()
    assert b"  ?       0.001" in shown.file.buffer.getvalue()


# -- with a terminal -------------------------------------------------------------------------------


def test_the_live_part(screen):
    shown = screen(terminal=True)
    shown.sink.start(INFO)
    assert shown.live()[0].startswith("epoch  1/300")
    assert shown.live()[0].endswith("0%            – left")
    for step in range(1, 151):
        shown.step(step, accuracy=0.5 if step <= 100 else 0.75)
    epoch, step, objective, figures = shown.live()
    assert epoch.split()[:2] == ["epoch", "2/300"]
    assert epoch.endswith("0%   8 h 18 min left")
    assert step.split()[:2] == ["step", "50/100"]
    assert step.endswith("50%         50 s left")
    assert objective == (
        "objective  -1.2345 = log-lik.  -1.2000 − head KL   0.0234 − Gram KL   0.0111"
    )
    assert figures == "accuracy  75.00% batch,  75.00% epoch   rate 0.01   1,234 images/s"


def test_work_besides_steps_has_a_bar_of_its_own(screen):
    shown = screen(terminal=True)
    shown.sink.start(INFO)
    shown.step(1)
    shown.sink.progress("scoring test images", 2500, 10_000)
    _, _, images, *_ = shown.live()
    assert images.split()[:2] == ["images", "2500/10000"]
    assert images.endswith("25%  scoring test images")
    shown.sink.progress("scoring test images", 10_000, 10_000)
    assert len(shown.live()) == 4


def test_work_besides_steps_in_a_file_and_where_it_stopped(screen):
    shown = screen(terminal=False)
    shown.sink.start(INFO)
    shown.step(30_000)
    for done in range(0, 70, 10):
        shown.sink.progress("scoring training images", done, 70)
        shown.clock.now += 10
    shown.sink.close()
    assert shown.lines[-4:-1] == [
        "scoring training images: 30 of 70",
        "scoring training images: 60 of 70",
        "stopped at step 30,000 of 30,000 after 1 s, scoring training images: 60 of 70",
    ]


def test_bad_and_missing_values_are_dashes(screen):
    shown = screen(terminal=True)
    shown.sink.start(INFO)
    shown.sink.step(StepRecord(1, 1, {"objective": math.nan, "accuracy": math.nan}))
    _, _, objective, figures = shown.live()
    assert " ".join(objective.split()) == "objective – = log-lik. – − head KL – − Gram KL –"
    assert " ".join(figures.split()) == "accuracy – batch, – epoch rate – – images/s"


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_the_live_part_never_wraps(screen, width):
    shown = screen(terminal=True, width=width)
    info = RunInfo("cifar10", 1000, 10_000, 50_000, 5_000_000)
    shown.info = info
    shown.sink.start(info)
    worst = dict.fromkeys(("objective", "expected_log_likelihood", "head_kl", "kl"), -1.23456e-123)
    shown.step(5_432_101, accuracy=1.0, learning_rate=1.234e-100, **worst)
    shown.step(5_432_102, seconds=1e5, images_per_second=1e7, **worst)
    lines = shown.live()
    assert len(lines) == 4
    assert all(len(line) <= width for line in lines)


def test_lines_of_epochs_fit_80_columns(screen):
    shown = screen(terminal=True)
    info = RunInfo("cifar10", 1000, 100, 50_000)
    shown.sink.start(info)
    figures = {
        "objective": -1234567.0,
        "train_accuracy": 1.0,
        "test_accuracy": 1.0,
        "test_log_likelihood": -99.1,
        "learning_rate": 1.234e-5,
        "seconds": 86_340.0,
    }
    shown.epoch(1000, **figures)
    shown.sink.close()
    text = shown.file.getvalue()
    assert "1000/1000  -1.23e+06     100.00%    100.00%  -99.1000  1.23e-05  23 h 59 min\n" in text


def test_messages_and_epochs_stay_above_the_live_part(screen):
    shown = screen(terminal=True)
    shown.sink.start(INFO)
    shown.step(1)
    shown.sink.message("take care", "warning")
    shown.epoch(1)
    text = shown.file.getvalue()
    assert text.index("warning: take care") < text.rindex("objective  ")
    shown.sink.close()
    assert shown.file.getvalue().rstrip("\n").endswith("stopped at step 1 of 30,000 after 1 s")


def test_closing_restores_the_terminal_whatever_happens(screen):
    shown = screen(terminal=True)
    output, errors = sys.stdout, sys.stderr

    def training():
        with Sinks([shown.sink]) as sinks:
            sinks.start(INFO)
            assert shown.file.getvalue().count(HIDE_CURSOR) == 1
            assert SHOW_CURSOR not in shown.file.getvalue()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        training()
    text = shown.file.getvalue()
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)
    assert (sys.stdout, sys.stderr) == (output, errors)
    shown.sink.close()
    assert shown.file.getvalue() == text


def test_closing_restores_the_terminal_even_if_the_view_is_broken(screen, monkeypatch):
    shown = screen(terminal=True)
    shown.sink.start(INFO)

    def broken(self):
        if threading.current_thread() is threading.main_thread():
            raise RuntimeError("cannot draw")
        return ""

    monkeypatch.setattr(TerminalSink, "__rich__", broken)
    with pytest.raises(RuntimeError, match="cannot draw"):
        shown.sink.close()
    text = shown.file.getvalue()
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)


def test_closing_before_the_start_is_silent(screen):
    shown = screen(terminal=True)
    shown.sink.close()
    assert shown.file.getvalue() == ""


def test_a_dumb_terminal_gets_plain_lines():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, _environ={"TERM": "dumb"})
    with TerminalSink(console) as sink:
        sink.start(INFO)
    assert HIDE_CURSOR not in file.getvalue()


def test_the_display_is_drawn_at_its_own_pace(screen, monkeypatch):
    drawn = []
    render = TerminalSink.__rich__

    def counted(self):
        drawn.append(time.monotonic())
        return render(self)

    monkeypatch.setattr(TerminalSink, "__rich__", counted)
    shown = screen(terminal=True)
    shown.sink.start(INFO)
    began = time.monotonic()
    for step in range(1, 5001):
        shown.step(step, seconds=0.001)
    took = time.monotonic() - began
    assert len(drawn) <= 3 + 2 * (took + 1) * view.REFRESHES_PER_SECOND

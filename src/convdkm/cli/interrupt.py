"""Ctrl-C: the first asks the program to stop soon, the second ends it at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

SAME_PRESS_SECONDS = 1.0
LONGEST_CALL_SECONDS = 1.0
"""How long a signal may wait for its handler, where there is nothing to save."""


class Interrupt:
    """While entered, a first SIGINT or SIGTERM sets :attr:`asked`; a later one ends the program.

    Signals within a second count as one: ``torchrun`` passes on what the terminal has sent to all.

    Args:
        message: is written to standard error at once, since a step may take a while.
        too_early: if given, a signal before :meth:`begin` ends the program with these words, even
            during a long call of a C function, such as the eigenvectors of a matrix.
    """

    def __init__(self, message: str = "", *, too_early: str | None = None) -> None:
        self.asked = False
        self.exit_code = 128 + signal.SIGINT
        """Of a program that a signal ended: 130 after Ctrl-C."""
        self._message, self._too_early = message, too_early
        self._time = 0.0
        self._before: dict[signal.Signals, Any] = {}
        self._handled = threading.Event()
        self._wakeup: tuple[int, int] | None = None

    def __call__(self) -> bool:
        return self.asked

    def begin(self) -> None:
        """From now on a first signal only asks: there is work to be saved."""
        self._too_early = None
        self._stop_listening()

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        if self._too_early is not None:
            self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_listening()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._handled.set()
        now = time.monotonic()
        if self.asked and now - self._time > SAME_PRESS_SECONDS:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked, self._time, self.exit_code = True, now, 128 + number
            _say(self._message if self._too_early is None else self._too_early)
            if self._too_early is not None:
                raise KeyboardInterrupt

    def _listen(self) -> None:
        """Let another thread see signals, too: a handler runs only between the main thread's calls.

        Python writes the number of a signal to the pipe as soon as it arrives.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self._wakeup = (writer, signal.set_wakeup_fd(writer, warn_on_full_buffer=False))
        threading.Thread(target=self._end_if_not_handled, args=(reader,), daemon=True).start()

    def _stop_listening(self) -> None:
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            signal.set_wakeup_fd(wakeup[1])
            os.close(wakeup[0])  # which ends the thread

    def _end_if_not_handled(self, reader: int) -> None:
        while signals := os.read(reader, 1):
            number, message = signals[0], self._too_early
            ours = number in (signal.SIGINT, signal.SIGTERM)
            if ours and message is not None and not self._handled.wait(LONGEST_CALL_SECONDS):
                _say(message)
                with suppress(Exception):
                    sys.stdout.flush()
                os._exit(128 + number)
        os.close(reader)


def _say(message: str) -> None:
    if message:
        os.write(2, f"\n{message}\n".encode())

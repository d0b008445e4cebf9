"""Ctrl-C once asks politely; twice insists."""

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
"""How long a signal may wait for Python, where there is nothing to lose."""


class Interrupt:
    """While entered, a first SIGINT or SIGTERM sets :attr:`asked`; a later one ends the program.

    Signals within a second count as one: ``torchrun`` passes on what the terminal has sent to all.

    Args:
        message: what standard error is told at once, since a step may take a while.
        too_early: if given, then until :meth:`begin` there is nothing to be polite about: a signal
            ends the program with these words, though it be in the middle of a long function that is
            not Python's, such as the eigenvectors of a matrix.
    """

    def __init__(self, message: str = "", *, too_early: str | None = None) -> None:
        self.asked = False
        self.number = signal.SIGINT
        self._message, self._too_early = message, too_early
        self._time = 0.0
        self._before: dict[signal.Signals, Any] = {}
        self._heard = threading.Event()
        self._ears: tuple[int, int] | None = None

    def __call__(self) -> bool:
        return self.asked

    def begin(self) -> None:
        """Be polite from now on: there is something to lose."""
        self._too_early = None
        self._stop_listening()

    @property
    def exit_code(self) -> int:
        """Of a program that a signal ended: 130 after Ctrl-C."""
        return 128 + self.number

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
        self._heard.set()
        now = time.monotonic()
        if self.asked and now - self._time > SAME_PRESS_SECONDS:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked, self._time, self.number = True, now, signal.Signals(number)
            _say(self._message if self._too_early is None else self._too_early)
            if self._too_early is not None:
                raise KeyboardInterrupt

    # -- signals that Python cannot hear -------------------------------------------------------

    def _listen(self) -> None:
        """Let another thread hear of signals, too: handlers wait for the main thread's Python."""
        heard, told = os.pipe()
        os.set_blocking(told, False)
        self._ears = (told, signal.set_wakeup_fd(told, warn_on_full_buffer=False))
        threading.Thread(target=self._end_if_nobody_does, args=(heard,), daemon=True).start()

    def _stop_listening(self) -> None:
        ears, self._ears = self._ears, None
        if ears is not None:
            signal.set_wakeup_fd(ears[1])
            os.close(ears[0])  # which ends the thread

    def _end_if_nobody_does(self, heard: int) -> None:
        while signals := os.read(heard, 1):
            number, message = signals[0], self._too_early
            ours = number in (signal.SIGINT, signal.SIGTERM)
            if ours and message is not None and not self._heard.wait(LONGEST_CALL_SECONDS):
                _say(message)
                with suppress(Exception):
                    sys.stdout.flush()
                os._exit(128 + number)
        os.close(heard)


def _say(message: str) -> None:
    if message:
        os.write(2, f"\n{message}\n".encode())

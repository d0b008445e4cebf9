"""Ctrl-C once asks politely; twice insists."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType
from typing import Any

SAME_PRESS_SECONDS = 1.0


class Interrupt:
    """While entered, a first SIGINT or SIGTERM sets :attr:`asked`; a later one ends the program.

    Signals within a second count as one: ``torchrun`` passes on what the terminal has sent to all.

    Args:
        message: what standard error is told at once, since a step may take a while.
    """

    def __init__(self, message: str = "") -> None:
        self.asked = False
        self.number = signal.SIGINT
        self._message = message
        self._time = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        return self.asked

    @property
    def exit_code(self) -> int:
        """Of a program that a signal ended: 130 after Ctrl-C."""
        return 128 + self.number

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.asked and now - self._time > SAME_PRESS_SECONDS:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked, self._time, self.number = True, now, signal.Signals(number)
            if self._message:
                os.write(2, f"\n{self._message}\n".encode())

"""Ctrl-C once asks politely; twice insists."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """While entered, a first SIGINT or SIGTERM sets :attr:`asked`; a second ends the program."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        return self.asked

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
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

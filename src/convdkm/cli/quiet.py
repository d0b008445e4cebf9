"""What is told of a run that is not watched, and when one begins."""

from __future__ import annotations

from collections.abc import Callable

from convdkm.cli.output import warn
from convdkm.training.sinks import Level, RunInfo, Sink


class WarningSink(Sink):
    """Says what went wrong, and nothing else."""

    def message(self, text: str, level: Level = "info") -> None:
        if level != "info":
            warn(text)


class BeginningSink(Sink):
    """Calls a function when training begins."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin

    def start(self, info: RunInfo) -> None:
        self._begin()

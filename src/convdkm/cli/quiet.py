"""A run that is not watched."""

from __future__ import annotations

from convdkm.cli.output import warn
from convdkm.training.sinks import Level, Sink


class WarningSink(Sink):
    """Says what went wrong, and nothing else."""

    def message(self, text: str, level: Level = "info") -> None:
        if level != "info":
            warn(text)

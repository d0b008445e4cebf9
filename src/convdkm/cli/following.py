"""A run under the eyes of the user, for ``convdkm train`` and ``convdkm resume``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convdkm.cli.interrupt import Interrupt
from convdkm.cli.output import console, metrics_table, say, say_path, warn
from convdkm.config import RunConfig
from convdkm.runtime.allocator import keep_freed_memory
from convdkm.storage.text import in_shell
from convdkm.training.sinks import Level, RunInfo, Sink
from convdkm.training.view import TerminalSink
from convdkm.training.world import find_device

STOPPING = "Stopping after this step, or batch of images. Ctrl-C again stops at once."
TOO_EARLY = "Stopped before training began."


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


def follow(
    start: Callable[..., Any], settings: RunConfig, folder: Path, *, quiet: bool, **more: Any
) -> None:
    """Train, with the live view; the last line printed is the folder."""
    if find_device(settings.training.device).type == "cpu":
        keep_freed_memory()  # every step takes the memory that the one before gave up
    sink = WarningSink() if quiet else TerminalSink(console())
    leads = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun started
    # The others are told by torchrun that the first has ended.
    with Interrupt(STOPPING, too_early=TOO_EARLY) if leads else Interrupt() as interrupt:
        try:
            sinks = [sink, BeginningSink(interrupt.begin)]
            run = start(sinks=sinks, stop=interrupt, **more)
        except KeyboardInterrupt:
            if leads and (folder / "checkpoints").is_dir():
                _say_how_to_go_on("Stopped at once", folder)
            sys.exit(interrupt.exit_code)
    if not run.leads:
        return
    if run.metrics:
        console().print(metrics_table(run.metrics))
        say_path(folder)
        return
    _say_how_to_go_on(f"Stopped after step {run.step}; all is saved", folder)
    sys.exit(interrupt.exit_code)


def _say_how_to_go_on(what: str, folder: Path) -> None:
    say(f"{what}. Go on with\n  convdkm resume {in_shell(folder)}")
    say_path(folder)

"""The messages of a run, kept in its folder."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from convdkm.storage.text import one_line
from convdkm.training.sinks import Level, RunInfo, Sink


class LogSink(Sink):
    """Appends messages to ``log.txt``, each with its time."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / "log.txt"

    def start(self, info: RunInfo) -> None:
        verb = "goes on after" if info.first_step else "starts at"
        total = info.epochs * info.steps_per_epoch
        self.message(f"training {verb} step {info.first_step} of {total}")

    def message(self, text: str, level: Level = "info") -> None:
        moment = datetime.now(timezone.utc).isoformat(timespec="seconds")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{moment} {level}: {one_line(text)}\n")

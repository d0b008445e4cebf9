"""The folder of a sweep: what is planned there, and how far it has come.

``sweep.json`` says what is planned and at what scale; the runs lie below it, each an ordinary run
with a log beside it, and the error of one that failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from convdkm.config import RunConfig
from convdkm.errors import InvalidInputError
from convdkm.lab.studies.planning import PlannedRun, Scale, Selection, difference, plan
from convdkm.lab.studies.specification import METRICS, Part
from convdkm.storage.files import locked, read_mapping, read_text, write_json

RECORD, LOCK = "sweep.json", ".sweep.lock"
OWN = (LOCK, "jobs")
"""What may lie in the folder of a sweep before it is one."""

State = Literal["finished", "failed", "begun", "missing", "other"]


class Record(Part):
    """What a folder is for: tables, and the one scale of all its runs."""

    scale: Scale
    tables: dict[str, Selection]

    def plan(self) -> list[PlannedRun]:
        """Every run that is needed."""
        return plan(self.tables.values(), self.scale)


@dataclass(frozen=True)
class Status:
    """How far a run has come.

    Attributes:
        state: ``finished``, ``failed``, ``begun``, ``missing``, or ``other``: in its place is a run
            with other settings.
        metrics: of a finished run.
        detail: the error of a failed one, or where another differs.
    """

    state: State
    metrics: Mapping[str, float] | None = None
    detail: str = ""


class SweepFolder:
    """The folder of a sweep."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def read(self) -> Record:
        """What is planned; an error if nothing is."""
        if not (self.path / RECORD).is_file():
            reason = f"has no {RECORD}" if self.path.is_dir() else "does not exist"
            raise InvalidInputError(
                f"{self.path} is not the folder of a sweep: it {reason}. `convdkm sweep TABLE"
                f" --output {self.path}` makes one"
            )
        return self._read()

    def _read(self) -> Record:
        path = self.path / RECORD
        try:
            return Record.model_validate_json(read_text(path))
        except ValueError as error:
            first = str(error).splitlines()[0]
            raise InvalidInputError(f"{path} is damaged: {first}") from None

    def add(self, table: str, chosen: Selection, scale: Scale) -> Record:
        """Plan more here; an error if what is here was made at another scale."""
        tables: dict[str, Selection] = {}
        if (self.path / RECORD).is_file():
            before = self._read()
            if changed := scale.difference(before.scale):
                raise InvalidInputError(
                    f"{self.path} holds a sweep at another scale ({changed}); choose another"
                    " --output, since runs of different scales do not make one table"
                )
            tables = dict(before.tables)
        elif self.path.is_dir() and any(each.name not in OWN for each in self.path.iterdir()):
            raise InvalidInputError(
                f"{self.path} is not empty and holds no sweep; choose another --output"
            )
        elif self.path.exists() and not self.path.is_dir():
            raise InvalidInputError(f"{self.path} is a file; a sweep needs a folder")
        tables[table] = tables[table].merged(chosen) if table in tables else chosen
        record = Record(scale=scale, tables=tables)
        write_json(self.path / RECORD, record.model_dump(mode="json"))
        return record

    def locked(self) -> AbstractContextManager[None]:
        """Keep other sweeps from working here, for as long as this one does."""
        return locked(
            self.path / LOCK,
            f"a sweep is being made in {self.path}",
            "wait for it, or choose another --output",
        )

    def of(self, run: PlannedRun) -> Path:
        """The folder of a run."""
        return self.path / run.place

    def log(self, run: PlannedRun) -> Path:
        """What a run printed."""
        return _beside(self.of(run), "log")

    def status(self, run: PlannedRun) -> Status:
        """How far a run has come."""
        folder = self.of(run)
        if (folder / "config.yaml").is_file():
            changed = difference(RunConfig.from_file(folder / "config.yaml"), run.config)
            if changed:
                return Status("other", detail=changed)
        metrics = read_metrics(folder)
        if metrics is not None:
            return Status("finished", metrics)
        failure = read_mapping(_beside(folder, "failed.json"))
        if failure is not None:
            return Status("failed", detail=str(failure.get("error", "")))
        return Status("begun" if (folder / "checkpoints").is_dir() else "missing")

    def note_failure(self, run: PlannedRun, error: str, attempts: int) -> None:
        """Keep the error of a run."""
        time = datetime.now(timezone.utc).isoformat(timespec="seconds")
        content = {"error": error, "attempts": attempts, "time": time}
        write_json(_beside(self.of(run), "failed.json"), content)

    def clear_failure(self, run: PlannedRun) -> None:
        """Forget the error of a run that is begun again."""
        _beside(self.of(run), "failed.json").unlink(missing_ok=True)


def read_metrics(folder: Path) -> dict[str, float] | None:
    """The final figures of a run; None if it is not finished."""
    metrics = read_mapping(folder / "metrics.json")
    if metrics is None or not all(name in metrics for name in METRICS):
        return None
    return metrics


def _beside(folder: Path, ending: str) -> Path:
    return folder.with_name(f"{folder.name}.{ending}")

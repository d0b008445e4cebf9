"""The folder of a sweep: ordinary runs, each with its log and, if it failed, its error beside it.

``sweep.json`` says what is planned and at what scale.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from convdkm.config import RunConfig
from convdkm.lab.studies import folder
from convdkm.lab.studies.folder import Status, StudyFolder
from convdkm.lab.studies.sweeps.planning import (
    PlannedRun,
    Scale,
    Selection,
    difference,
    merged_by_name,
    plan,
)
from convdkm.lab.studies.sweeps.specification import METRICS
from convdkm.storage.files import read_mapping, write_json


class Record(folder.Record):
    """What a folder is for: tables, and the one scale of all its runs."""

    scale: Scale
    tables: dict[str, Selection]

    def planned(self) -> list[PlannedRun]:
        return plan(self.tables.values(), self.scale)

    def merged(self, more: Record) -> Record:
        tables = merged_by_name([*self.tables.items(), *more.tables.items()])
        return Record(scale=self.scale, tables=tables)


class SweepFolder(StudyFolder[PlannedRun, Record]):
    """The folder of a sweep."""

    kind = "sweep"
    command = "convdkm sweep TABLE"
    one_scale = "runs of different scales do not make one table"
    record = Record

    def of(self, run: PlannedRun) -> Path:
        """The folder of a run."""
        return self.path / run.place

    def status(self, planned: PlannedRun) -> Status:
        """How far a run has come."""
        run = self.of(planned)
        if (run / "config.yaml").is_file():
            changed = difference(RunConfig.from_file(run / "config.yaml"), planned.config)
            if changed:
                return Status(state="other", error=changed)
        metrics = read_metrics(run)
        if metrics is not None:
            return Status(state="finished", metrics=metrics)
        failure = read_mapping(self.file(planned, "failed.json"))
        if failure is not None:
            return Status(state="failed", error=str(failure.get("error", "")))
        return Status(state="begun" if (run / "checkpoints").is_dir() else "missing")

    def note_failure(self, run: PlannedRun, error: str, attempts: int) -> None:
        """Keep the error of a run."""
        time = datetime.now(timezone.utc).isoformat(timespec="seconds")
        content = {"error": error, "attempts": attempts, "time": time}
        write_json(self.file(run, "failed.json"), content)

    def clear_failure(self, run: PlannedRun) -> None:
        """Forget the error of a run that is begun again."""
        self.file(run, "failed.json").unlink(missing_ok=True)


def read_metrics(folder: Path) -> dict[str, float] | None:
    """The final figures of a run; None if it is not finished."""
    metrics = read_mapping(folder / "metrics.json")
    if metrics is None or not all(name in metrics for name in METRICS):
        return None
    return metrics

"""What the folder of a run says of it, without opening its machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convdkm.config import RunConfig
from convdkm.storage.files import read_mapping
from convdkm.training.folder import CONFIG, ENVIRONMENT, METRICS, read_config
from convdkm.training.run import Run
from convdkm.training.sinks import read_csv, read_layers

Rows = Sequence[Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class Record:
    """The files of a run, read: settings, versions and command, and what training has noted.

    A run in memory has no folder, and one that is not finished no metrics. The instruments of
    ``layers`` are by epoch, 0 being before training, and by the names of layers.
    """

    name: str
    config: RunConfig
    folder: Path | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    steps: Rows = ()
    epochs: Rows = ()
    layers: Mapping[int, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Record:
        """From the folder of a run; one that is not is an error."""
        config, _ = read_config(folder)
        return cls(
            folder.resolve().name,
            config,
            folder,
            read_mapping(folder / ENVIRONMENT) or {},
            _numbers(read_mapping(folder / METRICS) or {}),
            read_csv(folder / "steps.csv"),
            read_csv(folder / "epochs.csv"),
            read_layers(folder / "layers.csv"),
        )

    @classmethod
    def of(cls, run: Run) -> Record:
        """Of a run that is open, in a folder or in memory."""
        if run.folder is not None:
            return cls.read(run.folder)
        return cls(run.config.data.dataset, run.config, metrics=_numbers(run.metrics))

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return self.metrics.get("epochs", 0) >= self.config.training.epochs

    @property
    def has_curves(self) -> bool:
        """Whether anything was noted in training."""
        return bool(self.steps or self.epochs)

    @property
    def steps_per_epoch(self) -> float | None:
        """None before the first epoch is over."""
        return self.epochs[0]["step"] / self.epochs[0]["epoch"] if self.epochs else None

    @property
    def progress(self) -> str:
        """How far training has come."""
        epochs = self.config.training.epochs
        if self.finished:
            return f"{int(self.metrics['epochs'])} epochs"
        if self.epochs:
            return f"{int(self.epochs[-1]['epoch'])} of {epochs} epochs"
        return f"{int(self.steps[-1]['step'])} steps" if self.steps else "no step noted"

    @property
    def figures(self) -> dict[str, float]:
        """The final figures, or those of the last epoch that was evaluated.

        Those of training are then left out: they were taken while the parameters moved.
        """
        if self.metrics:
            return dict(self.metrics)
        found: dict[str, float] = {}
        for row in self.epochs:
            found |= {k: v for k, v in row.items() if k.startswith(("test_", "validation_"))}
        if self.epochs and "seconds" in self.epochs[-1]:
            found["seconds"] = self.epochs[-1]["seconds"]
        return found


def runs_in(paths: Sequence[Path]) -> list[Path]:
    """The folders of runs among paths: themselves, or those inside a folder that is none."""
    found: list[Path] = []
    for path in paths:
        inside = [] if (path / CONFIG).is_file() or not path.is_dir() else sorted(path.iterdir())
        runs = [each for each in inside if (each / CONFIG).is_file()]
        if not runs:
            read_config(path)  # for its message
        found += runs or [path]
    return list(dict.fromkeys(found))


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(v) for name, v in values.items() if isinstance(v, (int, float))}

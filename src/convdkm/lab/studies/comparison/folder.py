"""The folder of a comparison: its plan and its results.

``comparison.json`` holds the plan and the scale. Below ``trials`` every trial has a file with its
figures, or with the error of one that failed, and a log beside it. Of a comparison that is kept for
others to read, ``trials.jsonl`` holds them all, a line each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from convdkm.choices import WhiteningChoice
from convdkm.lab.baselines.methods import NAMES
from convdkm.lab.studies import folder
from convdkm.lab.studies.folder import Status, StudyFolder
from convdkm.options import PositiveInt
from convdkm.storage.files import parse_json, read_text, write_json, write_text

PACKED = "trials.jsonl"

Plan = dict[str, dict[int, int]]
"""For each method, the training sizes, and how many seeds of each."""


@dataclass(frozen=True)
class PlannedTrial:
    """One method, fitted once."""

    method: str
    size: int
    seed: int

    @property
    def title(self) -> str:
        return f"{self.method}, {self.size:,} images, seed {self.seed}"

    @property
    def place(self) -> str:
        return f"train-{self.size}/{self.method}/seed-{self.seed}"


def product(methods: Sequence[str], sizes: Sequence[int], seeds: int) -> Plan:
    """Every method at every size."""
    return {name: dict.fromkeys(sizes, seeds) for name in methods}


class Scale(folder.Scale):
    """Settings that all trials of a folder have in common; ``minutes`` limit the fit of each."""

    dataset: str
    preset: str
    whitening: WhiteningChoice
    test_size: PositiveInt | None = None
    image_size: PositiveInt | None = None
    minutes: float | None = None


class Record(folder.Record):
    """The scale of a comparison, and for each method its training sizes and their seeds."""

    scale: Scale
    plan: Plan

    def planned(self) -> list[PlannedTrial]:
        """Every trial: small sizes first, and all methods of a seed in the order of tables."""
        trials = [
            PlannedTrial(method, size, seed)
            for method, sizes in self.plan.items()
            for size, seeds in sizes.items()
            for seed in range(seeds)
        ]
        return sorted(trials, key=lambda each: (each.size, each.seed, NAMES.index(each.method)))

    def merged(self, more: Record) -> Record:
        """The methods, sizes and seeds of either, methods in the order of tables."""
        either: Plan = {}
        for name in (name for name in NAMES if name in self.plan or name in more.plan):
            one, other = self.plan.get(name, {}), more.plan.get(name, {})
            either[name] = {
                size: max(one.get(size, 0), other.get(size, 0)) for size in sorted({*one, *other})
            }
        return Record(scale=self.scale, plan=either)


class TrialResult(Status):
    """How a trial ended.

    Attributes:
        state: ``missing`` where it has not ended.
        refused: whether it failed before any work, since it could not have been done.
        metrics: of the test images; accuracy alone where a method has no probabilities.
        fit_seconds, predict_seconds: of the training images and of all test images.
        fit_cpu_seconds: the time of processors, of the fit.
        fit_flops: floating-point operations of the training steps, where they are counted.
        peak_memory: bytes that the process held at the worst moment of both.
        added_memory: of these, what it had not held before.
        parameters: count of learned parameters.
        train_images, test_images: counts of images.
        cut_short: whether the time limit ended the fit.
        resumed: whether the fit began with blocks of a kernel from a trial that was killed, whose
            time is not in ``fit_seconds``.
        notes: messages of the method, the last line of each kind.
        environment: versions, machine and commit.
    """

    state: Literal["finished", "failed", "missing"]
    refused: bool = False
    metrics: dict[str, float] = Field(default_factory=dict)
    fit_seconds: float | None = None
    predict_seconds: float | None = None
    fit_cpu_seconds: float | None = None
    fit_flops: float | None = None
    peak_memory: int | None = None
    added_memory: int | None = None
    parameters: int | None = None
    train_images: int | None = None
    test_images: int | None = None
    cut_short: bool = False
    resumed: bool = False
    notes: tuple[str, ...] = ()
    environment: dict[str, Any] = Field(default_factory=dict)


class ComparisonFolder(StudyFolder[PlannedTrial, Record]):
    """The folder of a comparison."""

    kind = "comparison"
    command = "convdkm compare DATASET"
    one_scale = "methods are compared on the same terms"
    record = Record
    below = "trials"

    def images(self, trial: PlannedTrial) -> Path:
        """The temporary file of the images of all trials with this size and seed."""
        return self.path / "images" / f"train-{trial.size}-seed-{trial.seed}.safetensors"

    def status(self, planned: PlannedTrial) -> TrialResult:
        """How a trial ended; ``missing`` where it has not, or its file is damaged."""
        try:
            return TrialResult.model_validate_json(read_text(self.file(planned)))
        except (OSError, ValueError):
            return self._packed.get(planned.place, TrialResult(state="missing"))

    def write(self, trial: PlannedTrial, result: TrialResult) -> None:
        """Keep how a trial ended."""
        write_json(self.file(trial), result.model_dump(mode="json"))

    def pack(self) -> Path:
        """Move the results of all trials into one file, and return its path."""
        trials, path = self.read().planned(), self.path / PACKED
        found = {trial.place: self.status(trial) for trial in trials}
        self._packed = {place: each for place, each in found.items() if each.state != "missing"}
        lines = [
            json.dumps({"trial": place} | result.model_dump(mode="json", exclude_defaults=True))
            for place, result in self._packed.items()
        ]
        write_text(path, "\n".join(lines) + "\n")
        for trial in trials:
            self.file(trial).unlink(missing_ok=True)
        return path

    @cached_property
    def _packed(self) -> dict[str, TrialResult]:
        """Results that are in one file, by the places of trials; without damaged lines."""
        found = {}
        path = self.path / PACKED
        for line in read_text(path).splitlines() if path.is_file() else ():
            try:
                content = parse_json(line)
                place = content.pop("trial")
                found[place] = TrialResult.model_validate(content)
            except (AttributeError, KeyError, TypeError, ValueError):
                continue
        return found

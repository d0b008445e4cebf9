"""The folder of a comparison: what is planned there, and what has come out.

``comparison.json`` says what is planned and at what scale. Below ``trials`` every trial has a file
of its own with its figures, or with the error of one that failed, and a log beside it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from convdkm.choices import WhiteningChoice
from convdkm.errors import InvalidInputError
from convdkm.lab.studies.comparison.planning import Plan, PlannedTrial, merged, planned
from convdkm.lab.studies.specification import Part
from convdkm.options import PositiveInt
from convdkm.storage.files import locked, read_text, write_json

RECORD, LOCK = "comparison.json", ".comparison.lock"
OWN = (LOCK,)
"""What may lie in the folder of a comparison before it is one."""


class Scale(Part):
    """What all trials of a folder have in common; ``minutes`` limit the fit of each."""

    dataset: str
    preset: str
    whitening: WhiteningChoice
    test_size: PositiveInt | None = None
    image_size: PositiveInt | None = None
    minutes: float | None = None

    def difference(self, other: Scale) -> str:
        """Where another scale differs, in words; empty if nowhere."""
        mine, theirs = self.model_dump(), other.model_dump()
        return ", ".join(
            f"{name.replace('_', ' ')} {_words(theirs[name])} and not {_words(mine[name])}"
            for name in mine
            if mine[name] != theirs[name]
        )


class Record(Part):
    """What a folder is for: the scale, and for each method its training sizes and their seeds."""

    scale: Scale
    plan: Plan

    def trials(self) -> list[PlannedTrial]:
        """Every trial that is planned."""
        return planned(self.plan)


class TrialResult(Part):
    """How a trial ended.

    Attributes:
        state: ``finished`` or ``failed``.
        error: why it failed.
        refused: it failed before any work, since it could not have been done.
        metrics: of the test images; accuracy alone where a method has no probabilities.
        fit_seconds, predict_seconds: of the training images and of all test images.
        peak_memory: bytes that the process held at the worst moment of both.
        added_memory: of these, what it had not held before.
        parameters: numbers learned.
        train_images, test_images: how many.
        cut_short: the time limit ended the fit.
        resumed: the fit began with blocks of a kernel from a trial that was killed, whose time is
            not in ``fit_seconds``.
        notes: what the method said, the last line of each kind.
        environment: versions, machine and commit.
    """

    state: Literal["finished", "failed"]
    error: str = ""
    refused: bool = False
    metrics: dict[str, float] = Field(default_factory=dict)
    fit_seconds: float | None = None
    predict_seconds: float | None = None
    peak_memory: int | None = None
    added_memory: int | None = None
    parameters: int | None = None
    train_images: int | None = None
    test_images: int | None = None
    cut_short: bool = False
    resumed: bool = False
    notes: tuple[str, ...] = ()
    environment: dict[str, Any] = Field(default_factory=dict)


class ComparisonFolder:
    """The folder of a comparison."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @staticmethod
    def is_one(path: str | Path) -> bool:
        """Whether a folder holds a comparison."""
        return (Path(path) / RECORD).is_file()

    def read(self) -> Record:
        """What is planned; an error if nothing is."""
        if not self.is_one(self.path):
            reason = f"has no {RECORD}" if self.path.is_dir() else "does not exist"
            raise InvalidInputError(
                f"{self.path} is not the folder of a comparison: it {reason}. `convdkm compare"
                f" DATASET --output {self.path}` makes one"
            )
        path = self.path / RECORD
        try:
            return Record.model_validate_json(read_text(path))
        except ValueError as error:
            first = str(error).splitlines()[0]
            raise InvalidInputError(f"{path} is damaged: {first}") from None

    def check(self, scale: Scale) -> Record | None:
        """What is planned here; an error if the folder is for another scale or another purpose."""
        if self.is_one(self.path):
            before = self.read()
            if changed := scale.difference(before.scale):
                raise InvalidInputError(
                    f"{self.path} holds a comparison at another scale ({changed}); choose another"
                    " --output, since methods are compared on the same terms"
                )
            return before
        if self.path.is_dir() and any(each.name not in OWN for each in self.path.iterdir()):
            raise InvalidInputError(
                f"{self.path} is not empty and holds no comparison; choose another --output"
            )
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInputError(f"{self.path} is a file; a comparison needs a folder")
        return None

    def add(self, scale: Scale, plan: Plan) -> Record:
        """Plan more here; see :meth:`check`."""
        before = self.check(scale)
        record = Record(scale=scale, plan=merged({} if before is None else before.plan, plan))
        write_json(self.path / RECORD, record.model_dump(mode="json"))
        return record

    def locked(self) -> AbstractContextManager[None]:
        """Keep other comparisons from working here, for as long as this one does."""
        return locked(
            self.path / LOCK,
            f"a comparison is being made in {self.path}",
            "wait for it, or choose another --output",
        )

    def file(self, trial: PlannedTrial, ending: str = "json") -> Path:
        """The file of a trial: its result, or with another ending what lies beside it."""
        return self.path / "trials" / f"{trial.place}.{ending}"

    def images(self, size: int, seed: int) -> Path:
        """Where the images of trials are kept while they run."""
        return self.path / "images" / f"train-{size}-seed-{seed}.safetensors"

    def result(self, trial: PlannedTrial) -> TrialResult | None:
        """How a trial ended; None where it has not, or its file is damaged."""
        try:
            text = read_text(self.file(trial))
            return TrialResult.model_validate_json(text)
        except (OSError, ValueError):
            return None

    def write(self, trial: PlannedTrial, result: TrialResult) -> None:
        """Keep how a trial ended."""
        write_json(self.file(trial), result.model_dump(mode="json"))

    def finished(self, trial: PlannedTrial) -> bool:
        """Whether a trial needs no more work."""
        result = self.result(trial)
        return result is not None and result.state == "finished"


def _words(value: object) -> str:
    return "unset" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

"""The folder of a study: the plan, the scale, and the state of every task.

A file named after the kind of study holds the plan; the results of tasks lie below it. The state of
a study is what lies in its folder: there is no list of jobs to fall out of step with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from convdkm.errors import InvalidInputError
from convdkm.storage.files import locked, read_text, write_json

JOBS, TRIAL_LOG = "jobs", "trial.log"
"""Where a launcher keeps its files, and where short trials of runs print."""


class Part(BaseModel):
    """Base of what a file holds: immutable, and no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Planned(Protocol):
    """A planned task: its ``title`` in messages, unique in its study, and the place of its files.

    ``place`` is relative to the folder of the study.
    """

    @property
    def title(self) -> str: ...
    @property
    def place(self) -> str: ...


class Status(Part):
    """The state of a task.

    Attributes:
        state: ``other`` where a task with other settings lies in its place.
        error: why it failed, or where the other differs.
        metrics: of a finished one.
    """

    state: Literal["finished", "failed", "begun", "missing", "other"]
    error: str = ""
    metrics: dict[str, Any] = Field(default_factory=dict)


class Scale(Part):
    """Settings that all tasks of a folder have in common."""

    def flat(self) -> dict[str, Any]:
        """The values by name."""
        return self.model_dump()


class Record(Part, ABC):
    """The content of a study's file: its scale and its plan."""

    scale: Scale

    @abstractmethod
    def planned(self) -> list[Any]:
        """Every task, in the order they are made."""

    @abstractmethod
    def merged(self, more: Any) -> Any:
        """A record with the tasks of two records of one scale."""


P = TypeVar("P", bound=Planned)
R = TypeVar("R", bound=Record)


class StudyFolder(ABC, Generic[P, R]):
    """The folder of a study.

    Attributes:
        kind: of the study, in a word.
        command: that makes such a folder.
        one_scale: why all tasks of a folder have one scale.
        record: class of the content of its file.
        below: sub-folder of the files of tasks.
    """

    kind: ClassVar[str]
    command: ClassVar[str]
    one_scale: ClassVar[str]
    record: ClassVar[type[Any]]
    below: ClassVar[str] = ""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = self.path / f".{self.kind}.lock"

    @classmethod
    def is_one(cls, path: str | Path) -> bool:
        """Whether a folder holds such a study."""
        return (Path(path) / f"{cls.kind}.json").is_file()

    def read(self) -> R:
        """The record of the study; an error if there is none."""
        path = self.path / f"{self.kind}.json"
        if not self.is_one(self.path):
            reason = f"has no {path.name}" if self.path.is_dir() else "does not exist"
            raise InvalidInputError(
                f"{self.path} is not the folder of a {self.kind}: it {reason}. `{self.command}"
                f" --output {self.path}` makes one"
            )
        try:
            found: R = self.record.model_validate_json(read_text(path))
        except ValueError as error:
            first = str(error).splitlines()[0]
            raise InvalidInputError(f"{path} is damaged: {first}") from None
        return found

    def check(self, scale: Scale) -> R | None:
        """The record so far; an error if the folder is for another scale or another purpose."""
        if self.is_one(self.path):
            before = self.read()
            have, want = (
                {name.replace("_", " "): value for name, value in each.flat().items()}
                for each in (before.scale, scale)
            )
            if changed := difference(have, want):
                raise InvalidInputError(
                    f"{self.path} holds a {self.kind} at another scale ({changed}); choose another"
                    f" --output, since {self.one_scale}"
                )
            return before
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInputError(f"{self.path} is a file; a {self.kind} needs a folder")
        found = {each.name for each in self.path.iterdir()} if self.path.exists() else set()
        if found - {self._lock.name, JOBS, TRIAL_LOG}:
            raise InvalidInputError(
                f"{self.path} is not empty and holds no {self.kind}; choose another --output"
            )
        return None

    def add(self, more: R) -> R:
        """Plan more tasks; see :meth:`check`."""
        record: R = (self.check(more.scale) or more).merged(more)
        write_json(self.path / f"{self.kind}.json", record.model_dump(mode="json"))
        return record

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from working here."""
        taken = f"a {self.kind} is being made in {self.path}"
        return locked(self._lock, taken, "wait for it, or choose another --output")

    def file(self, planned: P, ending: str = "json") -> Path:
        """A file of a task: its result, or with another ending such as its ``log``."""
        return self.path / self.below / f"{planned.place}.{ending}"

    @abstractmethod
    def status(self, planned: P) -> Status:
        """The state of a task."""


def difference(have: dict[str, Any], want: dict[str, Any]) -> str:
    """Where two mappings differ, in words; empty if nowhere."""
    return ", ".join(
        f"{name} {in_words(have.get(name))} and not {in_words(want.get(name))}"
        for name in dict.fromkeys([*want, *have])
        if have.get(name) != want.get(name)
    )


def in_words(value: Any) -> str:
    """A value in messages."""
    if isinstance(value, (tuple, list)):
        return "/".join(map(str, value))
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    return "unset" if value is None else str(value)


def counted(count: int, noun: str) -> str:
    """A count of things: ``1 run``, ``2 runs``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"

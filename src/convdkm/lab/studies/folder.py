"""The folder of a study: what is planned there, at what scale, and how far it has come.

A file named after the kind of study says what is planned; what comes out lies below it. The state
of a study is what lies in its folder: there is no list of jobs to fall out of step with it.
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
"""Where a launcher keeps its files, and what is printed by what is only tried."""

State = Literal["finished", "failed", "begun", "missing", "other"]


class Part(BaseModel):
    """Base of what a file holds: immutable, and no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Planned(Protocol):
    """One task of a study, as it is planned."""

    @property
    def title(self) -> str:
        """In messages; unique in its study."""

    @property
    def place(self) -> str:
        """Where its files are, within the folder."""


class Status(Part):
    """How far a task has come.

    Attributes:
        state: ``finished``, ``failed``, ``begun``, ``missing``, or ``other``: in its place is one
            with other settings.
        error: why it failed, or where another differs.
        metrics: of a finished one.
    """

    state: State
    error: str = ""
    metrics: dict[str, Any] = Field(default_factory=dict)


class Scale(Part):
    """What all tasks of a folder have in common."""

    def flat(self) -> dict[str, Any]:
        """Its values by name."""
        return self.model_dump()


class Record(Part, ABC):
    """What a folder is for."""

    scale: Scale

    @abstractmethod
    def planned(self) -> list[Any]:
        """Every task, in the order they are made."""

    @abstractmethod
    def merged(self, more: Any) -> Any:
        """What is planned by either of two records of one scale."""


P = TypeVar("P", bound=Planned)
R = TypeVar("R", bound=Record)


class StudyFolder(ABC, Generic[P, R]):
    """The folder of a study.

    Attributes:
        kind: of the study, in a word.
        command: that makes such a folder.
        one_scale: why there is one scale in a folder.
        record: what its file holds.
        below: the folder within, which holds the files of tasks.
    """

    kind: ClassVar[str]
    command: ClassVar[str]
    one_scale: ClassVar[str]
    record: ClassVar[type[Any]]
    below: ClassVar[str] = ""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def is_one(cls, path: str | Path) -> bool:
        """Whether a folder holds such a study."""
        return (Path(path) / f"{cls.kind}.json").is_file()

    def read(self) -> R:
        """What is planned; an error if nothing is."""
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
        """What is planned here; an error if the folder is for another scale or another purpose."""
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
        if self.path.is_dir() and any(
            each.name not in (self._lock.name, JOBS, TRIAL_LOG) for each in self.path.iterdir()
        ):
            raise InvalidInputError(
                f"{self.path} is not empty and holds no {self.kind}; choose another --output"
            )
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInputError(f"{self.path} is a file; a {self.kind} needs a folder")
        return None

    def add(self, more: R) -> R:
        """Plan more here; see :meth:`check`."""
        before = self.check(more.scale)
        record: R = (before or more).merged(more)
        write_json(self.path / f"{self.kind}.json", record.model_dump(mode="json"))
        return record

    def locked(self) -> AbstractContextManager[None]:
        """Keep others from working here, for as long as this one does."""
        return locked(
            self._lock,
            f"a {self.kind} is being made in {self.path}",
            "wait for it, or choose another --output",
        )

    @property
    def _lock(self) -> Path:
        return self.path / f".{self.kind}.lock"

    def file(self, planned: P, ending: str = "json") -> Path:
        """A file of a task: what came out of it, or with another ending such as its ``log``."""
        return self.path / self.below / f"{planned.place}.{ending}"

    @abstractmethod
    def status(self, planned: P) -> Status:
        """How far a task has come."""


def difference(have: dict[str, Any], want: dict[str, Any]) -> str:
    """Where what there is differs from what is wanted, in words; empty if nowhere."""
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


def counted(number: int, noun: str) -> str:
    """A number of things: ``1 run``, ``2 runs``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"

"""Which images a run uses for what, written down so that it stays so whatever becomes of the files.

An image is known by its content: the digest of its file, or that of its pixels. So a file that was
renamed keeps its place, and a copy of a training image is one by any name. Names serve to say which
image is meant, and to tell that one has changed. Every image has its own digests, also in sets with
a published test part: which images a run has seen can then be told in any other set. They are
short, so that CIFAR-10 takes 1 MB, and less than a second when training starts.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from convdkm.data.dataset import Dataset, Part
from convdkm.data.labels import some_of
from convdkm.errors import InvalidInputError
from convdkm.storage.files import write_text

FORMAT = 1
PARTS = {"train": "training", "validation": "validation", "test": "test"}
"""The parts of a split, and what messages call them."""


class Entry(NamedTuple):
    """An image: its file in the set (empty without one), its class, and what it is known by."""

    name: str
    label: int
    digests: tuple[str, ...]


KINDS = {
    "removed": "removed",
    "changed": "changed",
    "relabelled": "now of another class",
    "replaced": "left out, now with the content of another image of the run",
}
"""What can have become of an image, and what messages call it."""


@dataclass(eq=False)
class Found:
    """What a set holds of a split, and how it differs from what was written down.

    Attributes:
        parts: the images that are there, those that have changed among them.
        changes: names by kind of change and part. ``changed``: other pixels under the same name.
            ``relabelled``: images of another class; if that is none of the run's, as where the
            folder of a class was renamed, they keep the one that they had. ``replaced``: files that
            now hold what another image held, and are left out. ``removed``: the rest.
        renamed: old and new names.
        added: how many images are in no part.
    """

    parts: dict[str, Part] = field(default_factory=dict)
    changes: dict[str, dict[str, list[str]]] = field(
        default_factory=lambda: {kind: defaultdict(list) for kind in KINDS}
    )
    renamed: list[str] = field(default_factory=list)
    added: int = 0

    def differences(self, parts: Iterable[str] = PARTS) -> list[str]:
        """What has become of the images of some parts, a phrase for each kind of change."""
        return [
            f"{_counted(len(names), PARTS[part])} {called} ({some_of(names)})"
            for part in parts
            for kind, called in KINDS.items()
            if (names := self.changes[kind].get(part))
        ]

    def told(self, place: str) -> str | None:
        """All that is different, for people; None if nothing is."""
        told = self.differences()
        if self.renamed:
            told.append(f"{_counted(len(self.renamed))} renamed ({some_of(self.renamed)})")
        if self.added:
            told.append(f"{_counted(self.added)} added, which this run does not use")
        return f"{place} has changed since this run was made: {'; '.join(told)}" if told else None


@dataclass(frozen=True, eq=False)
class SplitRecord:
    """The images of each part of a split, in their order.

    Attributes:
        class_names: what the labels stand for.
        image_shape: channels, height and width of the images.
        parts: the images of each part.
        unused: how many images of the set are in no part.
    """

    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]
    parts: Mapping[str, Sequence[Entry]]
    unused: int = 0

    @classmethod
    def of(cls, parts: Mapping[str, Part], class_names: tuple[str, ...], total: int) -> SplitRecord:
        """The record of a split of a set of ``total`` images."""
        shape = tuple(parts["train"].images.shape[1:])
        unused = total - sum(map(len, parts.values()))
        entries = {name: _entries(part, part.labels) for name, part in parts.items()}
        return cls(class_names, shape, entries, unused)

    @classmethod
    def read(cls, path: Path) -> SplitRecord | None:
        """The record in a file; None if there is no file."""
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(f"its format is {content['format']!r}, not {FORMAT}")
            names = tuple(map(str, content["class_names"]))
            shape = tuple(map(int, content["image_shape"]))
            parts = {name: _read_part(content["parts"][name], len(names)) for name in PARTS}
            return cls(names, shape, parts, int(content["unused"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidInputError(
                f"{path}, which says what this run was trained on, is damaged"
                f" ({type(error).__name__}: {error}); put a copy of it back, or remove it to have"
                " the split drawn anew from the images that are there now"
            ) from error

    def write(self, path: Path) -> None:
        """Write the record to a file, atomically."""
        parts = {
            name: {
                "names": [entry.name for entry in entries] if any(e.name for e in entries) else [],
                "labels": [entry.label for entry in entries],
                "digests": [" ".join(entry.digests) for entry in entries],
            }
            for name, entries in ((part, self.parts.get(part, ())) for part in PARTS)
        }
        content = {
            "format": FORMAT,
            "class_names": self.class_names,
            "image_shape": self.image_shape,
            "unused": self.unused,
            "parts": parts,
        }
        write_text(path, json.dumps(content, separators=(",", ":")) + "\n")

    @property
    def seen(self) -> set[str]:
        """The digests of all images that training, or the choice of the best epoch, saw."""
        return {
            digest
            for part in ("train", "validation")
            for entry in self.parts.get(part, ())
            for digest in entry.digests
        }

    def is_of(self, dataset: Dataset) -> bool:
        """Whether a set holds more than half of the training images, and of the test images."""
        there = {d for part in (dataset.train, dataset.test) for each in part.digests for d in each}
        return all(
            2 * sum(not there.isdisjoint(entry.digests) for entry in self.parts[part])
            > len(self.parts[part])
            for part in ("train", "test")
        )

    def find(self, dataset: Dataset) -> Found:
        """The images of the split in a set, wherever in it they are."""
        recorded = [entry for part in PARTS for entry in self.parts.get(part, ())]
        labels, count = renumbered(dataset, self.class_names), len(dataset.train)
        there = _entries(dataset.train, labels[:count]) + _entries(dataset.test, labels[count:])
        places = _matched(recorded, there)
        left = set(range(len(there))).difference(place for place in places if place is not None)
        names_left = {there[place].name for place in left} - {""}

        found, placed = Found(), iter(places)
        for part in PARTS:
            chosen, classes = [], []
            for order, entry in enumerate(self.parts.get(part, ()), 1):
                place, called = next(placed), entry.name or f"no. {order}"
                if place is None:
                    kind = "replaced" if entry.name in names_left else "removed"
                    found.changes[kind][part].append(called)
                    continue
                now = there[place]
                if set(now.digests).isdisjoint(entry.digests):
                    found.changes["changed"][part].append(called)
                elif now.label != entry.label:
                    found.changes["relabelled"][part].append(called)
                elif now.name != entry.name and entry.name:
                    found.renamed.append(f"{entry.name} → {now.name}")
                chosen.append(place)
                classes.append(entry.label if now.label < 0 else now.label)
            images = _picked(dataset, torch.tensor(chosen, dtype=torch.int64))
            found.parts[part] = Part(images, torch.tensor(classes, dtype=torch.int64))
        replaced = sum(map(len, found.changes["replaced"].values()))
        found.added = max(len(left) - replaced - self.unused, 0)
        return found


def renumbered(dataset: Dataset, class_names: Sequence[str]) -> Tensor:
    """The labels of all images, first those for training, as places in other class names.

    Images of classes that are not among them get -1.
    """
    numbers = {name: number for number, name in enumerate(class_names)}
    mapped = torch.tensor([numbers.get(name, -1) for name in dataset.class_names])
    return mapped[torch.cat([dataset.train_labels, dataset.test_labels])]


def _entries(part: Part, labels: Tensor) -> list[Entry]:
    names = [origin.name for origin in part.origins] or [""] * len(part)
    return [Entry(*each) for each in zip(names, labels.tolist(), part.digests, strict=True)]


def _read_part(content: Any, num_classes: int) -> list[Entry]:
    labels = [int(label) for label in content["labels"]]
    if labels and not 0 <= min(labels) <= max(labels) < num_classes:
        raise ValueError("it has labels without a class name")
    names = content["names"] or [""] * len(labels)
    digests = [tuple(each.split()) for each in content["digests"]]
    return [Entry(*each) for each in zip(map(str, names), labels, digests, strict=True)]


def _matched(recorded: Sequence[Entry], there: Sequence[Entry]) -> list[int | None]:
    """Where each recorded image is now: by all that is known, by content, at last by name alone.

    Labels tell images of the same content apart. Names alone are for images that have changed, so
    for such whose content is new.
    """
    places: list[int | None] = [None] * len(recorded)
    free = dict.fromkeys(range(len(there)))

    def match(keys: Callable[[Entry], Iterable[Hashable]], candidates: Iterable[int]) -> None:
        if None not in places:
            return
        waiting: dict[Hashable, deque[int]] = defaultdict(deque)
        for place in candidates:
            for key in keys(there[place]):
                waiting[key].append(place)
        for index, entry in enumerate(recorded):
            if places[index] is not None:
                continue
            for key in keys(entry):
                line = waiting.get(key) or deque()
                while line and line[0] not in free:
                    line.popleft()
                if line:
                    places[index] = place = line.popleft()
                    del free[place]
                    break

    match(lambda entry: [(entry.name, entry.label, digest) for digest in entry.digests], free)
    match(lambda entry: [(entry.label, digest) for digest in entry.digests], free)
    match(lambda entry: entry.digests, free)
    known = {digest for entry in recorded for digest in entry.digests}
    new = [place for place in free if known.isdisjoint(there[place].digests)]
    match(lambda entry: [entry.name] if entry.name else [], new)
    return places


def _picked(dataset: Dataset, places: Tensor) -> Tensor:
    """Images by their place among all of a set; without a copy where they are a whole part."""
    count = len(dataset.train)
    for part, start in ((dataset.train, 0), (dataset.test, count)):
        if torch.equal(places, torch.arange(start, start + len(part))):
            return part.images
    first = places < count
    images = dataset.train_images.new_empty(len(places), *dataset.image_shape)
    images[first] = dataset.train_images[places[first]]
    images[~first] = dataset.test_images[places[~first] - count]
    return images


def _counted(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}{' ' if kind else ''}image{'' if count == 1 else 's'}"

"""Where the images of a run come from, and which of them it uses for what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from convdkm.config import RunConfig
from convdkm.data import Dataset, from_arrays, from_torch, load
from convdkm.data.dataset import Part
from convdkm.data.registry import is_known, known_set
from convdkm.data.split_record import PARTS, SplitRecord, renumbered
from convdkm.errors import InvalidInputError
from convdkm.storage.text import named_path
from convdkm.training.folder import SPLIT

Tell = Callable[[str], None]


def not_told(text: str) -> None:
    """Tells nobody."""
    del text


@dataclass(frozen=True, eq=False)
class RunImages:
    """The images of a run by part (``train``, ``test`` and perhaps ``validation``).

    Attributes:
        name: of the data set.
        class_names: what the labels stand for.
        parts: the images.
        total: how many images the data set has, those in no part included.
    """

    name: str
    class_names: tuple[str, ...]
    parts: dict[str, Part]
    total: int

    @property
    def dataset(self) -> Dataset:
        """Those for training and for testing."""
        return Dataset.of(self.parts["train"], self.parts["test"], self.class_names, self.name)

    @property
    def held_out(self) -> tuple[Tensor, Tensor] | None:
        """Those for validation, with their labels; None if there are none."""
        part = self.parts.get("validation")
        return (part.images, part.labels) if part else None

    @property
    def split(self) -> SplitRecord:
        """Which images these are, to be kept with the run."""
        return SplitRecord.of(self.parts, self.class_names, self.total)


def load_dataset(
    config: RunConfig,
    report: Tell | None = None,
    *,
    whole: bool = False,
    shape: tuple[int, ...] | None = None,
) -> Dataset:
    """The data set that a configuration names.

    Args:
        report: as in :func:`convdkm.data.load`.
        whole: without a test part where the set has none of its own.
        shape: channels, height and width to bring images to where the configuration says nothing,
            so that those added to a folder need not be like the others.
    """
    data = config.data
    channels = shape[0] if shape is not None and shape[0] in (1, 3) else None
    return load(
        data.dataset,
        data_dir=data.data_dir,
        image_size=data.image_size or (shape and shape[1:]),
        channels=data.channels or channels,
        skip_bad=data.skip_bad,
        test_fraction=0 if whole else data.test_fraction,
        report=report,
    )


def drawn(config: RunConfig, dataset: Dataset | None = None, tell: Tell = not_told) -> RunImages:
    """The images of a run that begins: parts that the set lacks are drawn by the configuration.

    Args:
        config: the whole configuration.
        dataset: the images; loaded by the configuration if None.
        tell: is told what is left out or made up.
    """
    data = config.data
    dataset = load_dataset(config, tell) if dataset is None else dataset
    total = _size(dataset)
    if data.train_size is not None or data.test_size is not None:
        dataset = dataset.subset(data.train_size, data.test_size)
    if not dataset.has_test:
        dataset = dataset.with_split(data.test_fraction)
    parts = {"test": dataset.test}
    if data.validation:
        dataset, parts["validation"] = dataset.divided(data.validation)
    parts["train"] = dataset.train
    return RunImages(dataset.name, dataset.class_names, parts, total)


def kept(
    config: RunConfig,
    folder: Path | None,
    dataset: Dataset | None = None,
    tell: Tell = not_told,
    *,
    to_train: bool = False,
) -> RunImages:
    """The images of a run that is there, as its record has them, whatever was added to the set.

    The parts of runs without a record, which older versions made, are drawn again.

    Args:
        config: of the run; where its images have moved, with their new place.
        folder: of the run, None for one in memory.
        dataset: the images, whole; loaded by the configuration if None.
        tell: is told how the set differs from what it was.
        to_train: raise if training images are not what they were, or a part is gone altogether.
    """
    record = None if folder is None else SplitRecord.read(folder / SPLIT)
    place, loaded = config.data.dataset, dataset is None
    if dataset is None:
        if not is_known(place) and not named_path(place).exists():
            raise InvalidInputError(
                f"{place}, where this run has its images from, is not there; if they have moved,"
                " say where they are with --data (data=…)"
            )
        shape = None if record is None else record.image_shape
        dataset = load_dataset(config, tell, whole=True, shape=shape)
    if record is None:
        if not dataset.has_test and folder is not None:
            tell(
                f"{folder} has no {SPLIT}, as runs of older versions: its test images are drawn"
                f" anew from what {place} holds now, which is right only if nothing was added,"
                " removed or renamed there since"
            )
        if not dataset.has_test and loaded:
            dataset = dataset.with_split(config.data.test_fraction)
        return drawn(config, dataset, tell)
    found = record.find(dataset)
    if to_train and (lost := found.differences(["train"])):
        raise InvalidInputError(
            f"the images that this run was trained on are not what they were in {place}:"
            f" {'; '.join(lost)}. Put them back, say where they are with --data (data=…), or start"
            " a new run"
        )
    if difference := found.told(place):
        tell(difference)
    gone = [name for part, name in PARTS.items() if record.parts[part] and not found.parts[part]]
    if to_train and gone:
        raise InvalidInputError(f"none of the {gone[0]} images of this run is left in {place}")
    return RunImages(dataset.name, record.class_names, found.parts, _size(dataset))


def to_score(
    config: RunConfig,
    folder: Path | None,
    name: str,
    class_names: tuple[str, ...],
    tell: Tell = not_told,
) -> RunImages:
    """The images of another set as test images for a run: its test part, or all of it without one.

    A folder or file that holds the images of the run itself, since they have moved, is taken for
    what it is: the parts are then those of the run. Of any other set, images that training has seen
    are left out.

    Args:
        config: of the run.
        folder: of the run; None for a machine without one.
        name: of the set.
        class_names: of the run.
        tell: is told what is left out.
    """
    own = named_path(name).resolve() == named_path(config.data.dataset).resolve()
    config = config.updated({"dataset": name})
    record = None if folder is None else SplitRecord.read(folder / SPLIT)
    data = load_dataset(config, tell, whole=True)
    if not is_known(name) and (own if record is None else record.is_of(data)):
        return kept(config, folder, None if record is None else data, tell)
    labels, count = renumbered(data, class_names), len(data.train)
    if int(labels.min()) < 0:
        raise InvalidInputError(
            f"{name} has the classes {', '.join(data.class_names)}, but the model was"
            f" trained on {', '.join(class_names)}"
        )
    parts = {}
    if data.has_test:
        parts["train"] = replace(data.train, labels=labels[:count])
        parts["test"] = replace(data.test, labels=labels[count:])
    else:
        parts["test"] = replace(data.train, labels=labels)
    test = parts["test"]
    if record is not None:
        seen = record.seen
        new = [place for place, each in enumerate(test.digests) if seen.isdisjoint(each)]
        if not new:
            raise InvalidInputError(f"this run has seen every image of {name} in training")
        if len(new) < len(test):
            tell(
                f"{name} holds images that this run has seen in training, which are left out:"
                f" {len(test) - len(new):,} of {len(test):,}"
            )
            parts["test"] = test[torch.tensor(new)]
    elif not data.has_test:
        whose = "a machine without its run" if folder is None else folder
        tell(f"{whose} has no {SPLIT}: images of {name} that it was trained on are scored too")
    return RunImages(data.name, class_names, parts, _size(data))


def as_dataset(data: Any) -> tuple[Dataset | None, str]:
    """Images from Python as a data set, and what to call it; None for one that has to be loaded."""
    if isinstance(data, (str, Path)):
        name = str(data)
        return None, known_set(name).name if is_known(name) else name
    if isinstance(data, Dataset):
        return data, data.name or "images"
    if isinstance(data, (tuple, list)) and len(data) in (2, 4):
        return from_arrays(*data), "arrays"
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return from_torch(data), type(data).__name__
    raise InvalidInputError(
        "data must be a name, a path, a Dataset, (images, labels), (images, labels, test images,"
        f" test labels) or a PyTorch dataset; got {type(data).__name__}"
    )


def _size(dataset: Dataset) -> int:
    return len(dataset.train) + len(dataset.test)
